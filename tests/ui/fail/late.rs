use dq::delay_handler;

#[delay_handler("A", late = "5m")]
async fn no_parentheses() {}

#[delay_handler("B", late(after = "0s", then = "drop"))]
async fn out_of_range() {}

#[delay_handler("C", late(after = "5m"))]
async fn incomplete() {}

#[delay_handler("D", late(after = "5m", then = "queue:"))]
async fn no_queue() {}

fn main() {}
