use dq::delay_handler;

#[delay_handler("A", escalate = [])]
async fn no_steps() {}

#[delay_handler("B", escalate = ["15m", "0s"])]
async fn no_delay() {}

#[delay_handler("C", escalate = "15m")]
async fn no_list() {}

#[delay_handler("D", escalate = [15])]
async fn no_unit() {}

fn main() {}
