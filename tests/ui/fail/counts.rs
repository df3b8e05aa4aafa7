use dq::delay_handler;

#[delay_handler("A", max_attempts = 0)]
async fn no_attempt() {}

#[delay_handler("B", concurrency = 0)]
async fn no_slot() {}

#[delay_handler("C", max_losses = 0)]
async fn no_loss() {}

#[delay_handler("D", max_attempts = -1)]
async fn negative() {}

#[delay_handler("E", max_attempts = 5_000_000_000)]
async fn too_many() {}

const ATTEMPTS: u32 = 3;

#[delay_handler("F", max_attempts = ATTEMPTS)]
async fn no_literal() {}

fn main() {}
