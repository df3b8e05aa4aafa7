use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", lease)]
async fn handler() {}

fn main() {}
