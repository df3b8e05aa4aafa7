use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
fn handler() {}

fn main() {}
