use dq::delay_handler;

#[delay_handler("", max_attempts = 0, timeout = "soon", backoff(factor = 0, jitter = 2))]
async fn handler() {}

fn main() {}
