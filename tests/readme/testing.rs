//! How an application tests its handlers.

use dq::prelude::*;
use dq_testkit::TestKit;

use crate::first::{UnpaidOrder, order_timeout};
use crate::handler::Db;

// ---
#[tokio::test]
async fn an_unpaid_order_is_cancelled_after_15_minutes() -> dq::Result<()> {
    let kit = TestKit::with(|runner| runner.state(Db::in_memory())).await?;
    kit.dq()
        .schedule::<order_timeout>(UnpaidOrder { id: 1 })
        .after(15.minutes())
        .key("o-1")
        .await?;

    kit.assert_scheduled::<order_timeout>("o-1", 15.minutes()).await;
    let ran = kit.advance(30.minutes()).await; // everything due runs, at its time, in due order
    assert_eq!(ran[0].outcome(), "done");
    Ok(())
}
