use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(#[cfg(unix)] _ctx: dq::JobContext) {}

fn main() {}
