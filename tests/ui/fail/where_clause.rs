use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler()
where
    u32: Copy,
{
}

fn main() {}
