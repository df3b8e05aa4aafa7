//! Shutdown loses nothing and waits for nothing needlessly.

use std::sync::Arc;

use dq_core::{DurationExt, Outcome};
use tokio::sync::Notify;

use crate::rig::{Handle, Rig, Said};

#[tokio::test]
async fn running_handlers_may_finish() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    let finish = Arc::new(Notify::new());
    let gate = Arc::clone(&finish);
    rig.start(|runner| {
        runner.handler(Handle::new(move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                Ok(Outcome::Done)
            }
        }))
    });
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    rig.tell_to_stop();
    rig.until(&Said::Stopping).await;
    rig.schedule("late").await;
    finish.notify_one();
    rig.stopped().await.unwrap();
    let stats = rig.stats().await;
    assert_eq!(stats.totals.unwrap().done, 1);
    assert_eq!((stats.ready, stats.running), (1, 0), "nothing is claimed after the stop");
}

#[tokio::test]
async fn what_does_not_finish_within_the_grace_period_is_handed_back() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    rig.start(|runner| {
        runner.grace(3.seconds()).handler(Handle::new(async |_, _| std::future::pending().await))
    });
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    rig.tell_to_stop();
    rig.until(&Said::Stopping).await;
    rig.advance_until(500.millis(), &Said::Stopped).await;
    rig.stopped().await.unwrap();
    let stats = rig.stats().await;
    assert_eq!((stats.ready, stats.running), (1, 0), "due at once elsewhere, not after the lease");
    rig.start(|runner| runner.handler(Handle::done()));
    rig.until(&Said::Started { attempt: 1, deliveries: 2 }).await;
    rig.stop().await;
}

#[tokio::test]
async fn an_idle_runner_stops_at_once() {
    let mut rig = Rig::new().await;
    rig.start(|runner| runner.handler(Handle::done()));
    rig.stop().await;
}

#[tokio::test]
async fn a_closed_store_ends_the_runner_with_an_error() {
    let mut rig = Rig::new().await;
    rig.start(|runner| runner.handler(Handle::done()));
    rig.dq.close().await.unwrap();
    // The next look is the sweep; its timer may not be set yet.
    let error = loop {
        rig.clock.advance(1.seconds());
        tokio::task::yield_now().await;
        if rig.is_over() {
            break rig.stopped().await.unwrap_err();
        }
    };
    assert_eq!(error.kind(), dq_core::ErrorKind::Closed);
}
