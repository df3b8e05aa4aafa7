use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(_order: &str) {}

fn main() {}
