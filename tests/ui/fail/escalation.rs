use dq::delay_handler;

#[delay_handler("A", escalate = [])]
async fn no_steps() {}

#[delay_handler("B", escalate = ["15m", "0s"])]
async fn no_delay() {}

#[delay_handler("C", escalate = "15m")]
async fn no_list() {}

#[delay_handler("D", escalate = [15])]
async fn no_unit() {}

#[delay_handler("E", escalate_from = "first_due")]
async fn from_without_steps() {}

#[delay_handler("F", escalate = ["15m"], escalate_from = "start")]
async fn from_elsewhere() {}

fn main() {}
