//! README.

use dq::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct UnpaidOrder {
    pub id: i64,
}

#[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
pub async fn order_timeout(ctx: JobContext, order: UnpaidOrder) -> HandlerResult {
    println!("order {} was not paid, attempt {}", order.id, ctx.attempt());
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("sqlite://jobs.db").await?;

    let scheduled = dq
        .schedule::<order_timeout>(UnpaidOrder { id: 1001 })
        .after(15.minutes())
        .key("order-1001")
        .await?;
    println!("due at {}", scheduled.due());

    let cancelled = dq.cancel::<order_timeout>("order-1001").await?;
    assert_eq!(cancelled, Cancelled::Cancelled);

    let soon = dq.schedule::<order_timeout>(UnpaidOrder { id: 1002 }).after(3.seconds()).await?;
    println!("order 1002 is due at {}", soon.due());

    dq.runner().run_until(dq::shutdown_signal()).await
}
