use dq::delay_handler;

#[delay_handler("")]
async fn handler() {}

fn main() {}
