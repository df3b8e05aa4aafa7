use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler<T: serde::de::DeserializeOwned>(_payload: T) {}

#[delay_handler("B")]
async fn with_impl(_payload: impl serde::de::DeserializeOwned) {}

fn main() {}
