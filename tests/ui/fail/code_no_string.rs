use dq::delay_handler;

#[delay_handler(42)]
async fn handler() {}

fn main() {}
