use dq::delay_handler;

struct Order;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(_order: Order) {}

fn main() {}
