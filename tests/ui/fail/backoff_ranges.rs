use dq::delay_handler;

#[delay_handler("A", backoff(jitter = 1.5))]
async fn jitter() {}

#[delay_handler("B", backoff(factor = 0.5))]
async fn factor() {}

#[delay_handler("C", backoff(initial = "5m", max = "1m"))]
async fn initial_longer_than_max() {}

#[delay_handler("D", backoff(initial = "1h"))]
async fn initial_longer_than_default_max() {}

#[delay_handler("E", backoff(jitter = "much"))]
async fn no_number() {}

fn main() {}
