use dq::QueueCode;

#[derive(QueueCode)]
struct OrderTimeout;

fn main() {}
