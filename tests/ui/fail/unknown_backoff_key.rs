use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", backoff(start = "1s"))]
async fn handler() {}

fn main() {}
