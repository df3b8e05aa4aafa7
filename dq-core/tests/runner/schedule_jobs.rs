//! Schedules beside application jobs, and many due at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dq_core::{
    Backend, Clock, Dq, DurationExt, Layer, Limits, MemoryBackend, Overlap, Result, VirtualClock,
    async_trait,
};

use crate::runner::fixture::{Fixture, TestHandler};

/// No runner serves this queue.
const OCCURRENCES: &str = "OCCURRENCES";

async fn upsert(dq: &Dq, name: &str, payload: &str) {
    let schedule = dq.recurring_in(OCCURRENCES, name).every(1.minutes());
    assert!(schedule.payload(payload.into()).overlap(Overlap::Allow).upsert().await.unwrap());
}

async fn stored(fixture: &Fixture) -> u64 {
    let stats = fixture.dq.queue(OCCURRENCES).unwrap().stats().await.unwrap();
    stats.totals.unwrap().created
}

fn never() -> TestHandler {
    TestHandler::hangs().with(|settings| settings.timeout = Some(1.days()))
}

#[tokio::test]
async fn schedules_do_not_wait_for_the_slots_of_the_application() {
    // No slot is free, or fewer than the two queues could use.
    for (total, busy) in [(2, 2), (3, 2)] {
        let mut fixture = Fixture::new().await;
        upsert(&fixture.dq, "before", "x").await;
        for _ in 0..busy {
            fixture.schedule("x").await;
        }
        fixture.start(|runner| {
            let other = TestHandler::done().of_queue("OTHER");
            runner.concurrency(total).handler(never()).handler(other)
        });
        fixture.pass(10.seconds()).await;
        assert_eq!(fixture.stats().await.running, busy);
        upsert(&fixture.dq, "meanwhile", "x").await;
        fixture.pass(10.minutes()).await;
        assert_eq!(stored(&fixture).await, 20, "total {total}");
        assert_eq!(fixture.stats().await.running, busy, "they still run");
        fixture.abort().await;
    }
}

#[tokio::test]
async fn a_short_interval_keeps_its_times_while_slots_are_scarce() {
    // Fewer slots than the two queues could use: all free, some free, none free.
    for busy in [0, 2, 3] {
        let mut fixture = Fixture::new().await;
        let schedule = fixture.dq.recurring_in(OCCURRENCES, "short").every(500.millis());
        assert!(schedule.payload("x".into()).overlap(Overlap::Allow).upsert().await.unwrap());
        for _ in 0..busy {
            fixture.schedule("x").await;
        }
        fixture.start(|runner| {
            let other = TestHandler::done().of_queue("OTHER");
            runner.concurrency(3).sweep(1.minutes()).handler(never()).handler(other)
        });
        fixture.pass(10.seconds()).await;
        assert_eq!(fixture.stats().await.running, busy);
        let before = stored(&fixture).await;
        fixture.pass(50.seconds()).await;
        assert_eq!(stored(&fixture).await - before, 100, "{busy} jobs run");
        fixture.abort().await;
    }
}

#[tokio::test]
async fn jobs_of_the_application_do_not_exceed_the_total_beside_schedules() {
    let mut fixture = Fixture::new().await;
    for name in ["a", "b", "c"] {
        upsert(&fixture.dq, name, "x").await;
    }
    for _ in 0..10 {
        fixture.schedule("x").await;
    }
    fixture.start(|runner| runner.concurrency(4).handler(never()));
    for minute in 1..=3 {
        fixture.pass(1.minutes()).await;
        assert_eq!(stored(&fixture).await, minute * 3);
        assert_eq!(fixture.stats().await.running, 4);
    }
    fixture.abort().await;
}

#[derive(Debug)]
struct Counting {
    store: MemoryBackend,
    calls: AtomicUsize,
}

#[async_trait]
impl Layer for Counting {
    fn inner(&self) -> &dyn Backend {
        &self.store
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        self.calls.fetch_add(usize::from(method == "schedule"), Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn schedules_that_are_due_together_share_calls_of_the_store() {
    let clock = Arc::new(VirtualClock::default());
    let store = MemoryBackend::new(clock.clone());
    let store = Arc::new(Counting { store, calls: AtomicUsize::new(0) });
    let mut fixture = Fixture::with_backend(store.clone(), clock).await;
    for number in 0..500 {
        upsert(&fixture.dq, &format!("schedule-{number}"), "x").await;
    }
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.pass(10.seconds()).await;
    let before = store.calls.load(Ordering::SeqCst);
    fixture.pass(1.minutes()).await;
    assert_eq!(stored(&fixture).await, 500);
    let calls = store.calls.load(Ordering::SeqCst) - before;
    assert!((5..=50).contains(&calls), "{calls} calls");
    fixture.stop().await;
}

/// One schedule's payload exceeds the limit in the process that runs it.
#[tokio::test]
async fn a_schedule_whose_job_is_refused_does_not_hold_up_others() {
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(MemoryBackend::new(clock.clone()));
    let connect = async |limits| {
        let dq = Dq::builder().backend(store.clone()).clock(clock.clone()).limits(limits);
        dq.connect().await.unwrap()
    };
    let dq = connect(Limits::default()).await;
    for number in 0..20 {
        upsert(&dq, &format!("schedule-{number}"), "x").await;
    }
    upsert(&dq, "large", &"x".repeat(5_000)).await;
    let mut limits = Limits::default();
    limits.payload = 4_000;
    let mut fixture = Fixture::with_client(connect(limits).await, clock.clone());
    fixture.start(|runner| runner.handler(TestHandler::done()));
    let into_minute = clock.now().as_millis().rem_euclid(60_000) as u64;
    // Before the first retry after a failure.
    fixture.pass(1.minutes() - into_minute.millis() + 300.millis()).await;
    assert_eq!(stored(&fixture).await, 20);
    fixture.pass(2.minutes()).await;
    assert_eq!(stored(&fixture).await, 60);
    fixture.stop().await;
}
