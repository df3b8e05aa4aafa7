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

#[delay_handler("A", max_attempts = 0)]
async fn no_attempt() {}

#[delay_handler("B", concurrency = 0)]
async fn no_slot() {}

#[delay_handler("D", max_attempts = -1)]
async fn negative() {}

const ATTEMPTS: u32 = 3;

#[delay_handler("F", max_attempts = ATTEMPTS)]
async fn no_literal() {}

#[delay_handler("A", timeout = "soon")]
async fn no_duration() {}

#[delay_handler("B", timeout = 30)]
async fn no_unit() {}

#[delay_handler("C", timeout = "0s")]
async fn zero() {}

#[delay_handler("D", lease = "100ms")]
async fn lease_too_short() {}

#[delay_handler("E", lease = "2days")]
async fn lease_too_long() {}

#[delay_handler("F", lease = "none")]
async fn lease_without_end() {}

fn main() {}
