use dq::delay_handler;

#[delay_handler(max_attempts = 3, "ORDER_TIMEOUT")]
async fn handler() {}

fn main() {}
