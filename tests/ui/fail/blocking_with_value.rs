use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", blocking = true, max_attempts = 3)]
fn handler() {}

fn main() {}
