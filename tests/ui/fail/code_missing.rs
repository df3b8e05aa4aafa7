use dq::delay_handler;

#[delay_handler]
async fn bare() {}

#[delay_handler()]
async fn empty() {}

#[delay_handler(max_attempts = 3)]
async fn settings_only() {}

#[delay_handler(blocking)]
fn flag_only() {}

fn main() {}
