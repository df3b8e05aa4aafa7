use dq::{State, delay_handler};

struct Db;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(State(_db): State<Db>) {}

fn main() {}
