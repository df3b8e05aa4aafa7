use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler() -> u32 {
    42
}

fn main() {}
