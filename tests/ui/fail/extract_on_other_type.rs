use dq::delay_handler;

struct Tenant;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(#[extract] _tenant: Tenant) {}

fn main() {}
