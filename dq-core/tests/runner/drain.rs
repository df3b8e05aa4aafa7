//! Stores that are consumed and not produced to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dq_core::{
    Backend, Cancelled, Dq, DurationExt, MemoryBackend, OnConflict, QueueHandle, Rescheduled,
    Scheduled, VirtualClock,
};

use crate::odd::{Odd, Oddities, Opened};
use crate::rig::{Handle, QUEUE, Rig};

/// A client of a new store that drains an old one, and a client of the old one.
async fn old_and_new() -> (Rig, Rig) {
    let clock = Arc::new(VirtualClock::default());
    let old = Arc::new(MemoryBackend::new(clock.clone()));
    let before = Rig::on(old.clone(), clock.clone()).await;
    (before, draining(old, clock).await)
}

async fn draining(old: Arc<dyn Backend>, clock: Arc<VirtualClock>) -> Rig {
    let new = Arc::new(MemoryBackend::new(clock.clone()));
    let dq = Dq::builder().backend(new).drain(Opened::new(old)).clock(clock.clone());
    Rig::over(dq.connect().await.unwrap(), clock)
}

async fn put(queue: &QueueHandle, key: &str) {
    let job = queue.schedule(r#""old""#, "application/json").after(1.hours()).key(key);
    assert!(job.await.unwrap().is_stored());
}

#[tokio::test]
async fn what_is_pending_in_the_old_store_runs_down_and_can_be_changed_there() {
    let (before, mut rig) = old_and_new().await;
    for key in ["runs", "is cancelled", "is moved"] {
        put(&before.dq.queue(QUEUE).unwrap(), key).await;
    }
    let queue = rig.dq.queue(QUEUE).unwrap();
    assert_eq!(queue.cancel("is cancelled").await.unwrap(), Cancelled::Cancelled);
    let moved = queue.reschedule("is moved", 2.hours()).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)));
    assert!(queue.get("runs").await.unwrap().is_some());
    rig.schedule("new").await;
    assert_eq!(rig.stats().await.stored(), 3, "counts are of both stores");
    rig.start(|runner| runner.handler(Handle::done()));
    rig.until_settled().await;
    rig.clock.advance(1.hours());
    rig.until_settled().await;
    rig.clock.advance(1.hours());
    rig.until_settled().await;
    rig.stop().await;
    let old = before.stats().await;
    assert_eq!((old.totals.unwrap().done, old.stored()), (2, 0), "new jobs go to the new store");
    assert_eq!(rig.stats().await.totals.unwrap().done, 3);
}

#[tokio::test]
async fn a_key_that_is_live_in_the_old_store_is_a_conflict() {
    let (before, rig) = old_and_new().await;
    put(&before.dq.queue(QUEUE).unwrap(), "k").await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let job = || queue.schedule(r#""new""#, "application/json").after(2.hours()).key("k");
    assert!(matches!(job().await.unwrap(), Scheduled::Kept(_)));
    assert!(matches!(job().on_conflict(OnConflict::Earliest).await.unwrap(), Scheduled::Kept(_)));
    assert_eq!(rig.stats().await.stored(), 1);
    let replaced = job().on_conflict(OnConflict::Replace).await.unwrap();
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(before.stats().await.stored(), 0);
    assert_eq!(rig.stats().await.stored(), 1);
}

#[tokio::test]
async fn a_key_that_is_live_in_both_is_cancelled_in_both() {
    let (before, rig) = old_and_new().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    put(&queue, "k").await;
    put(&before.dq.queue(QUEUE).unwrap(), "k").await;
    assert_eq!(queue.cancel("k").await.unwrap(), Cancelled::Cancelled);
    assert_eq!(rig.stats().await.stored(), 0);
    assert_eq!(queue.cancel("k").await.unwrap(), Cancelled::NotFound);
}

#[tokio::test]
async fn pause_and_purge_reach_the_old_store() {
    let (before, rig) = old_and_new().await;
    put(&before.dq.queue(QUEUE).unwrap(), "k").await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    assert!(before.stats().await.paused);
    assert!(queue.resume().await.unwrap());
    assert_eq!(queue.purge().await.unwrap(), 1);
    assert_eq!(before.stats().await.stored(), 0);
}

#[tokio::test]
async fn an_old_store_that_hangs_keeps_nobody_waiting() {
    let clock = Arc::new(VirtualClock::default());
    let old = Odd::new(&clock, Oddities { claims_hang: true, ..Oddities::default() });
    let mut rig = draining(old, clock).await;
    rig.start(|runner| {
        runner.handler(Handle::done().with(|settings| settings.concurrency = Some(1)))
    });
    for _ in 0..3 {
        rig.schedule("x").await;
        rig.until_settled().await;
    }
    rig.tell_to_stop();
    rig.advance_until(5.seconds(), &crate::rig::Said::Stopped).await;
    rig.stopped().await.unwrap();
}

/// Waits for what may come.
async fn settle_down() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn stores_that_share_scarce_places_rest_while_none_is_free() {
    let clock = Arc::new(VirtualClock::default());
    let [old, new] = [(); 2].map(|()| Odd::new(&clock, Oddities::default()));
    let dq = Dq::builder().backend(new.clone()).drain(Opened::new(old.clone()));
    let dq = dq.clock(clock.clone()).connect().await.unwrap();
    let mut rig = Rig::over(dq, clock);
    rig.schedule("runs").await;
    rig.schedule("waits for its place").await;
    rig.start(|runner| {
        let hangs = Handle::new(async |_, _| std::future::pending().await);
        let other = crate::builder::Elsewhere;
        runner.handler(hangs.with(|settings| settings.concurrency = Some(1))).handler(other)
    });
    rig.until(&crate::rig::Said::Started { attempt: 1, deliveries: 1 }).await;
    settle_down().await;
    let claims = || [&old, &new].map(|store| store.claims.load(Ordering::SeqCst));
    let before = claims();
    settle_down().await;
    assert_eq!(claims(), before, "nothing was freed and no time has passed");
    rig.tell_to_stop();
    rig.advance_until(5.seconds(), &crate::rig::Said::Stopped).await;
    rig.stopped().await.unwrap();
}
