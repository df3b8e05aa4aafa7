use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", lease = "1m", max_attempts = 3, lease = "2m")]
async fn handler() {}

fn main() {}
