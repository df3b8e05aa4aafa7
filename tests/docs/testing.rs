//! Guide: testing.

use dq::prelude::*;
use dq_testkit::{TestContext, TestKit};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    id: u64,
}

#[delay_handler("CANCEL_ORDER")]
async fn cancel_order(_order: Order) {}

#[delay_handler("REMIND_TO_PAY")]
async fn remind(_ctx: JobContext, _order: Order) -> HandlerResult {
    Ok(Outcome::Done)
}

async fn place_order(dq: &Dq, order: Order) -> dq::Result<Scheduled> {
    let key = format!("order-{}", order.id);
    dq.schedule::<cancel_order>(order).after(15.minutes()).key(key).await
}

#[tokio::test]
async fn an_unpaid_order_is_cancelled_after_15_minutes() -> dq::Result<()> {
    let kit = TestKit::new().await?;
    let _ = place_order(kit.dq(), Order { id: 1 }).await?;

    kit.assert_scheduled::<cancel_order>("order-1", 15.minutes()).await;
    assert!(kit.advance(14.minutes()).await.is_empty());

    let ran = kit.advance(1.minutes()).await;
    assert_eq!(ran[0].outcome(), "done");
    Ok(())
}

#[tokio::test]
async fn the_last_attempt_alerts_a_human() {
    let ctx = TestContext::new().attempt(5).max_attempts(5).build();
    assert!(ctx.is_last_attempt());
    assert_eq!(remind(ctx, Order { id: 1 }).await.unwrap(), Outcome::Done);
}
