use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
struct OrderTimeout;

fn main() {}
