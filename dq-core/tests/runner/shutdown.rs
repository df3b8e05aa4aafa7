//! Shutdown: grace period, release of unfinished jobs, errors.

use std::sync::Arc;

use dq_core::config::QueueSettings;
use dq_core::{
    DurationExt, ErrorKind, JobContext, JobResult, Middleware, Next, Outcome, RunnerBuilder,
    Settled, async_trait,
};
use tokio::sync::Notify;

use crate::runner::fixture::{Blocking, FIRST, Fixture, Observed, TestHandler};
use crate::runner::log_lines::log_lines;

#[tokio::test]
async fn running_handlers_may_finish() {
    let finish = Arc::new(Notify::new());
    let gate = Arc::clone(&finish);
    let handler = TestHandler::new(move |_, _| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            Ok(Outcome::Done)
        }
    });
    let mut fixture = Fixture::running(handler).await;
    fixture.wait_for(&FIRST).await;
    fixture.request_stop();
    fixture.wait_for(&Observed::Stopping).await;
    fixture.schedule("late").await;
    finish.notify_one();
    fixture.join().await.unwrap();
    assert_eq!(fixture.done().await, 1);
    let stats = fixture.stats().await;
    assert_eq!((stats.ready, stats.running), (1, 0), "nothing is claimed after the stop");
}

#[tokio::test]
async fn a_job_that_does_not_finish_within_the_grace_period_is_released() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.grace(3.seconds()).handler(TestHandler::hangs()));
    fixture.wait_for(&FIRST).await;
    fixture.stop_by(500.millis()).await;
    let stats = fixture.stats().await;
    assert_eq!((stats.ready, stats.running), (1, 0), "due at once elsewhere, not after the lease");
    fixture.run(TestHandler::done());
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 2 }).await;
    fixture.stop().await;
}

/// Writes something about each run after it.
#[derive(Clone, Copy)]
enum Audit {
    Works,
    Hangs,
}

#[async_trait]
impl Middleware for Audit {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        let result = next.run(job).await;
        match self {
            Self::Works => tokio::task::yield_now().await,
            Self::Hangs => std::future::pending().await,
        }
        result
    }
}

async fn blocking_past_grace(audit: Audit) -> (Fixture, Blocking) {
    let run = |runner: RunnerBuilder| runner.grace(3.seconds()).middleware(audit);
    let (mut fixture, blocking) = Fixture::blocking(QueueSettings::new(), run).await;
    fixture.request_stop();
    fixture.wait_for(&Observed::Stopping).await;
    fixture.pass(4.seconds()).await;
    assert_eq!(fixture.stats().await.running, 1, "not released while the thread runs");
    fixture.wait_for(&Observed::GraceExceeded).await;
    (fixture, blocking)
}

#[tokio::test]
async fn a_blocking_handler_that_ends_soon_after_the_grace_period_is_settled_or_released() {
    for (result, done) in [(Ok(Outcome::Done), 1), (Err("interrupted".into()), 0)] {
        let (mut fixture, blocking) = blocking_past_grace(Audit::Works).await;
        blocking.end(result);
        fixture.join().await.unwrap();
        assert_eq!((fixture.done().await, fixture.stats().await.ready), (done, 1 - done));
    }
}

#[tokio::test]
async fn middleware_that_hangs_after_a_blocking_handler_is_dropped_and_its_job_released() {
    let (mut fixture, blocking) = blocking_past_grace(Audit::Hangs).await;
    blocking.end(Ok(Outcome::Done));
    fixture.advance_until(100.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    let stats = fixture.stats().await;
    assert_eq!((stats.ready, stats.running), (1, 0));
    assert!(!log_lines().contains("blocking handlers still run"), "{}", log_lines());
}

#[tokio::test]
async fn a_blocking_handler_that_outlives_the_runner_keeps_its_lease_and_is_settled() {
    let (mut fixture, blocking) = blocking_past_grace(Audit::Works).await;
    fixture.advance_until(500.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    assert!(log_lines().contains("blocking handlers still run"), "{}", log_lines());
    let dq = fixture.dq.clone();
    for _ in 0..120 {
        fixture.pass(1.seconds()).await;
        assert_eq!(fixture.stats().await.running, 1, "two minutes, with a lease of 30 s");
    }
    assert_eq!(dq.runners().await.unwrap().len(), 1, "it is still announced");

    blocking.end(Ok(Outcome::Done));
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    assert_eq!(fixture.done().await, 1);
    while !dq.runners().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_closed_store_ends_the_runner_with_an_error() {
    let mut fixture = Fixture::new().await;
    fixture.run(TestHandler::done());
    fixture.dq.close().await.unwrap();
    // The next claim comes after the sweep interval of 1 s, whose timer may not be set yet.
    while !fixture.has_stopped() {
        fixture.clock.advance(1.seconds());
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.join().await.unwrap_err().kind(), ErrorKind::Closed);
}
