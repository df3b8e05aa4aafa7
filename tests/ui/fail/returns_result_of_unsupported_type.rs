use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler() -> dq::Result<u32> {
    Ok(42)
}

fn main() {}
