use dq::delay_handler;

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
