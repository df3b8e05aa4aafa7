use dq::{JobContext, delay_handler};

#[derive(serde::Deserialize)]
struct Order;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(_order: Order, _ctx: JobContext) {}

fn main() {}
