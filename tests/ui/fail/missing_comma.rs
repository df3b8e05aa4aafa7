use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT" lease = "1m")]
async fn handler() {}

fn main() {}
