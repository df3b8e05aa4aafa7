use dq::delay_handler;

async fn is_open(_order: u64) -> bool {
    true
}

async fn counts(_order: u64) -> usize {
    1
}

fn is_not_async(_order: u64) -> bool {
    true
}

#[delay_handler("A", guard = is_open)]
async fn other_arguments(_order: String) {}

#[delay_handler("B", guard = counts)]
async fn other_result(_order: u64) {}

#[delay_handler("C", guard = is_closed)]
async fn no_such_guard(_order: u64) {}

#[delay_handler("D", guard = is_not_async)]
async fn guard_is_not_async(_order: u64) {}

fn main() {}
