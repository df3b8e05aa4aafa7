//! The first page of the README.

// ---
use dq::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct UnpaidOrder {
    pub id: u64,
}

#[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
pub async fn order_timeout(ctx: JobContext, order: UnpaidOrder) -> HandlerResult {
    println!("order {} was not paid, attempt {}", order.id, ctx.attempt());
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("sqlite://jobs.db").await?;

    dq.schedule::<order_timeout>(UnpaidOrder { id: 1001 }) // the compiler checks the payload
        .after(15.minutes()) // or .at(time)
        .key("order-1001") // your own name for the job
        .await?; // on the disk when this returns

    dq.cancel::<order_timeout>("order-1001").await?; // it was paid after all

    dq.schedule::<order_timeout>(UnpaidOrder { id: 1002 }).after(3.seconds()).await?;

    dq.runner()
        .run_until(async {
            // beside your web server
            tokio::signal::ctrl_c().await.ok();
        })
        .await
}
