//! Guide: moving from another system.

use dq::prelude::*;

#[delay_handler("CLOSE_UNPAID_ORDER")]
async fn close_unpaid_order(_order: u64) {}

async fn on_order_placed(dq: &Dq, order: u64) -> dq::Result<()> {
    let _ = dq.schedule::<close_unpaid_order>(order).after(15.minutes()).key(order).await?;
    Ok(())
}

async fn on_order_paid(dq: &Dq, order: u64) -> dq::Result<()> {
    let _ = dq.cancel::<close_unpaid_order>(order).await?;
    Ok(())
}
