use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(#[extract(first)] _ctx: dq::JobContext) {}

fn main() {}
