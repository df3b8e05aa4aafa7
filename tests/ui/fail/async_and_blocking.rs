use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", blocking)]
async fn handler() {}

fn main() {}
