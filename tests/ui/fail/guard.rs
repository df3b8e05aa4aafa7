use dq::delay_handler;

async fn is_open(_order: u64) -> bool {
    true
}

async fn counts(_order: u64) -> usize {
    1
}

#[delay_handler("A", guard = "is_open")]
async fn no_path(_order: u64) {}

#[delay_handler("B", guard_timeout = "1s")]
async fn no_guard(_order: u64) {}

#[delay_handler("C", guard = is_open, guard_timeout = "0s")]
async fn no_time(_order: u64) {}

fn main() {}
