use dq::delay_handler;

struct Tenant;

#[derive(serde::Deserialize)]
struct Order;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(_tenant: Tenant, _order: Order) {}

fn main() {}
