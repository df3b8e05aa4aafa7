use dq::delay_handler;

#[delay_handler("", lease = "1ms")]
async fn handler<T>(_order: &str) {}

fn main() {}
