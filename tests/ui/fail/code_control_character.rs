use dq::delay_handler;

#[delay_handler("ORDER\tTIMEOUT")]
async fn handler() {}

fn main() {}
