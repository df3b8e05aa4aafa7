use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", attempts = 3)]
async fn handler() {}

fn main() {}
