//! Guide: Redisson.

use dq::prelude::*;

#[derive(serde::Deserialize)]
struct Order {
    id: u64,
}

#[delay_handler("orders")]
async fn close_order(order: Order) -> HandlerResult {
    println!("order {} has expired", order.id);
    Ok(Outcome::Done)
}
