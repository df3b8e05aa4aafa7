//! Lateness objectives: missed, met again, and the named cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::{
    Announcement, Backend, ClaimParams, Claimed, Clock, DurationExt, Error, ErrorKind,
    LatenessCause, Layer, MemoryBackend, Outcome, QueueName, QueueStats, Result, VirtualClock,
    async_trait,
};

use crate::runner::fixture::{Fixture, Observed, QUEUE, TestHandler};

fn handler(takes: Duration) -> TestHandler {
    let run = move |job: dq_core::JobContext, _: String| async move {
        job.sleep(takes).await;
        Ok(Outcome::Done)
    };
    TestHandler::new(run).with(|settings| {
        settings.lateness = Some("90% < 1s".parse().unwrap());
        settings.concurrency = Some(1);
    })
}

/// Returns the objective's events during `time`.
async fn notified(fixture: &mut Fixture, time: Duration) -> Vec<Observed> {
    fixture.pass(time).await;
    let of_objective = |observed: &Observed| {
        matches!(observed, Observed::LatenessMissed(_) | Observed::LatenessRecovered)
    };
    fixture.observed().into_iter().filter(of_objective).collect()
}

#[tokio::test]
async fn slow_handlers_are_named_once_and_the_recovery_once() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| runner.handler(handler(3.seconds())));
    fixture.pass(1.seconds()).await;
    fixture.schedule("1").await;
    fixture.schedule("2").await;
    let missed = Observed::LatenessMissed(Some(LatenessCause::HandlersSlow));
    assert_eq!(notified(&mut fixture, 40.seconds()).await, [missed]);
    let announced = fixture.dq.runners().await.unwrap().remove(0).info.unwrap();
    let counts = announced.queues[0].objective.unwrap();
    assert_eq!((counts.in_time, counts.late), (1, 1));
    assert_eq!(announced.claim_ms, Some(0));
    let status = fixture.dq.lateness().await.unwrap().remove(0);
    assert!(status.is_missed() && status.waiting == 0, "{status}");
    assert_eq!(status.cause, Some(LatenessCause::HandlersSlow));

    for _ in 0..9 {
        fixture.schedule("in time").await;
        fixture.pass(4.seconds()).await;
    }
    assert_eq!(notified(&mut fixture, 15.seconds()).await, [Observed::LatenessRecovered]);
    assert_eq!(notified(&mut fixture, 60.seconds()).await, []);
    fixture.stop().await;
}

#[tokio::test]
async fn jobs_of_a_paused_queue_are_late_while_they_wait() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| runner.handler(handler(1.millis())));
    let queue = fixture.dq.queue(QUEUE).unwrap();
    queue.pause().await.unwrap();
    fixture.schedule("x").await;
    let missed = Observed::LatenessMissed(Some(LatenessCause::Paused));
    assert_eq!(notified(&mut fixture, 60.seconds()).await, [missed]);
    let status = fixture.dq.lateness().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.cause), (1, Some(LatenessCause::Paused)));
    // A job no longer waiting was not late.
    queue.purge().await.unwrap();
    assert_eq!(notified(&mut fixture, 20.seconds()).await, [Observed::LatenessRecovered]);
    fixture.stop().await;
}

#[derive(Debug)]
struct SlowStore {
    inner: MemoryBackend,
    clock: Arc<VirtualClock>,
    claims_take: Duration,
    fails: AtomicBool,
}

#[async_trait]
impl Layer for SlowStore {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.clock.sleep(self.claims_take).await;
        self.available()?;
        self.inner.claim(params).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.available()?;
        self.inner.stats(queues).await
    }
}

impl SlowStore {
    fn available(&self) -> Result<()> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "injected fault")),
            false => Ok(()),
        }
    }

    async fn fixture(claims_take: Duration) -> (Arc<Self>, Fixture) {
        let clock = Arc::new(VirtualClock::default());
        let inner = MemoryBackend::new(clock.clone());
        let fails = AtomicBool::new(false);
        let store = Arc::new(Self { inner, clock: clock.clone(), claims_take, fails });
        (store.clone(), Fixture::with_backend(store, clock).await)
    }
}

#[tokio::test]
async fn a_store_that_was_away_is_named_when_it_is_back() {
    let (store, mut fixture) = SlowStore::fixture(Duration::ZERO).await;
    fixture.start(|runner| runner.handler(handler(100.millis())));
    fixture.pass(1.seconds()).await;
    store.fails.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        fixture.schedule("x").await;
    }
    // No notice while nothing is known.
    assert_eq!(notified(&mut fixture, 40.seconds()).await, []);
    store.fails.store(false, Ordering::SeqCst);
    let missed = Observed::LatenessMissed(Some(LatenessCause::StoreSlow));
    assert_eq!(notified(&mut fixture, 30.seconds()).await, [missed]);
    // Each job waited longer for the store than for the only slot.
    let status = fixture.dq.lateness().await.unwrap().remove(0);
    assert_eq!((status.counts.late, status.cause), (10, Some(LatenessCause::StoreSlow)));
    fixture.stop().await;
}

/// The time that a run takes, that a claim takes, and from scheduling to the runner's start.
#[tokio::test]
async fn the_cause_of_late_starts_is_named() {
    let none = Duration::ZERO;
    for (takes, claims_take, before, others, cause) in [
        (900.millis(), none, none, false, Some(LatenessCause::SlotsFull)),
        (1.millis(), 2.seconds(), none, false, Some(LatenessCause::StoreSlow)),
        (3.seconds(), none, 10.minutes(), false, Some(LatenessCause::NoRunner)),
        (3.seconds(), none, 10.minutes(), true, None),
    ] {
        let (_, mut fixture) = SlowStore::fixture(claims_take).await;
        if others {
            let announcement = Announcement::new("first", info(), 1.hours());
            Backend::announce(&**fixture.dq.backend(), announcement).await.unwrap();
        }
        let jobs = if others { 1 } else { 4 };
        for _ in 0..jobs {
            fixture.schedule("x").await;
        }
        fixture.clock.advance(before);
        fixture.start(|runner| runner.handler(handler(takes)));
        let missed = Observed::LatenessMissed(cause);
        assert_eq!(notified(&mut fixture, 20.seconds()).await, [missed], "{takes:?}");
        fixture.stop_by(500.millis()).await;
    }
}

/// Of another runner of the queue.
fn info() -> String {
    format!(
        r#"{{"format":1,"host":"h","pid":1,"version":"0.1.0","started":0,"stopping":false,
        "concurrency":1,"running":1,"skew_ms":null,"omitted_queues":0,"queues":[{{"queue":"{QUEUE}",
        "concurrency":1,"running":1,"lateness":[],"run_time":[]}}]}}"#
    )
}
