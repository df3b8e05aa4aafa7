//! Schedules beside application jobs, and many due at once.

use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Clock, Dq, DurationExt, Limits, Overlap};

use crate::runner::fixture::{Fixture, TestHandler};

const OCCURRENCES: &str = "OCCURRENCES";

async fn upsert(dq: &Dq, name: &str, every: Duration, payload: &str) {
    let schedule = dq.recurring_in(OCCURRENCES, name).every(every).payload(payload.into());
    assert!(schedule.overlap(Overlap::Allow).upsert().await.unwrap());
}

async fn stored(fixture: &Fixture) -> u64 {
    let stats = fixture.dq.queue(OCCURRENCES).unwrap().stats().await.unwrap();
    stats.totals.unwrap().created
}

#[tokio::test]
async fn schedules_do_not_wait_for_the_slots_of_the_application() {
    // No slot is free, some are but fewer than the two queues could use, or all are free.
    for (total, jobs) in [(2, 4), (3, 2), (3, 0)] {
        let mut fixture = Fixture::new().await;
        upsert(&fixture.dq, "minutes", 1.minutes(), "x").await;
        for _ in 0..jobs {
            fixture.schedule("x").await;
        }
        fixture.start(|runner| {
            let never = TestHandler::hangs().with(QueueSettings::new().timeout(1.days()));
            let other = TestHandler::done().of_queue("OTHER");
            runner.concurrency(total).sweep(1.minutes()).handler(never).handler(other)
        });
        fixture.pass(10.seconds()).await;
        let running = jobs.min(total as u64);
        assert_eq!(fixture.stats().await.running, running);
        upsert(&fixture.dq, "short", 500.millis(), "x").await;
        fixture.pass(5.minutes()).await;
        let occurrences = stored(&fixture).await;
        assert!((604..=606).contains(&occurrences), "{occurrences}, total {total}");
        assert_eq!(fixture.stats().await.running, running, "they still run");
        fixture.abort().await;
    }
}

#[tokio::test]
async fn schedules_that_are_due_together_share_calls_of_the_store() {
    let mut fixture = Fixture::new().await;
    for number in 0..500 {
        upsert(&fixture.dq, &format!("schedule-{number}"), 1.minutes(), "x").await;
    }
    fixture.run(TestHandler::done());
    fixture.pass(10.seconds()).await;
    let before = fixture.store.calls("schedule");
    fixture.pass(1.minutes()).await;
    assert_eq!(stored(&fixture).await, 500);
    let calls = fixture.store.calls("schedule") - before;
    assert!((5..=50).contains(&calls), "{calls} calls");
    fixture.stop().await;
}

/// One schedule's payload exceeds the limit in the process that runs it.
#[tokio::test]
async fn a_schedule_whose_job_is_refused_does_not_hold_up_others() {
    let fixture = Fixture::new().await;
    for number in 0..20 {
        upsert(&fixture.dq, &format!("schedule-{number}"), 1.minutes(), "x").await;
    }
    upsert(&fixture.dq, "large", 1.minutes(), &"x".repeat(5_000)).await;
    let mut limits = Limits::default();
    limits.payload = 4_000;
    let Fixture { store, clock, .. } = fixture;
    let dq = Dq::builder().backend(store.clone()).clock(clock.clone()).limits(limits);
    let mut fixture = Fixture::with_client(dq.connect().await.unwrap(), store, clock);
    fixture.run(TestHandler::done());
    let into_minute = fixture.clock.now().as_millis().rem_euclid(60_000) as u64;
    // Before the first retry after a failure.
    fixture.pass(1.minutes() - into_minute.millis() + 300.millis()).await;
    assert_eq!(stored(&fixture).await, 20);
    fixture.pass(2.minutes()).await;
    assert_eq!(stored(&fixture).await, 60);
    fixture.stop().await;
}
