//! Timeouts cover middleware and handler, and are reported when nothing can be stopped.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    DurationExt, JobContext, JobError, JobResult, Middleware, Next, Outcome, async_trait,
};

use crate::runner::fixture::{BlockingHandler, FIRST, Fixture, Observed, Runs, TestHandler};
use crate::runner::log_lines::log_lines;

const TIMEOUT: Duration = Duration::from_secs(5);

struct Hangs {
    before: bool,
}

#[async_trait]
impl Middleware for Hangs {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        if self.before {
            std::future::pending::<()>().await;
        }
        let result = next.run(job).await;
        std::future::pending::<()>().await;
        result
    }
}

struct SkipsTimeouts;

#[async_trait]
impl Middleware for SkipsTimeouts {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        match next.run(job).await {
            Err(JobError::TimedOut(_)) => Ok(Outcome::skip("it was too slow")),
            result => result,
        }
    }
}

struct Impatient;

#[async_trait]
impl Middleware for Impatient {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        tokio::select! {
            result = next.run(job.clone()) => result,
            () = job.sleep(1.seconds()) => Err(JobError::Failed("too slow".into())),
        }
    }
}

fn hangs() -> TestHandler {
    TestHandler::hangs().with(|settings| settings.timeout = Some(TIMEOUT))
}

#[tokio::test]
async fn middleware_that_hangs_is_dropped_after_the_timeout() {
    for before in [true, false] {
        let mut fixture = Fixture::new().await;
        fixture.schedule("x").await;
        fixture.start(|runner| {
            let handler = TestHandler::done().with(|settings| settings.timeout = Some(TIMEOUT));
            runner.middleware(Hangs { before }).handler(handler)
        });
        fixture.wait_for(&FIRST).await;
        fixture.advance_until(1.seconds(), &Observed::Finished("Retry".to_owned())).await;
        fixture.stop().await;
    }
}

#[tokio::test]
async fn middleware_sees_the_timeout_of_the_handler() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.middleware(SkipsTimeouts).handler(hangs()));
    fixture.wait_for(&FIRST).await;
    fixture.advance_until(1.seconds(), &Observed::Finished("Skip".to_owned())).await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_blocking_handler_past_its_timeout_is_reported_and_its_result_counts() {
    let runs = Arc::new(Runs::default());
    let (handler, results) = BlockingHandler::new(&runs);
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture
        .start(|runner| runner.handler(handler.with(|settings| settings.timeout = Some(TIMEOUT))));
    while runs.highest() == 0 {
        tokio::task::yield_now().await;
    }
    fixture.advance_until(1.seconds(), &Observed::TimeoutExceeded).await;
    let text = log_lines();
    let warning = text.lines().find(|line| line.contains("exceeds its timeout")).unwrap();
    assert!(warning.contains("WARN") && warning.contains("queue=Q"), "{warning}");
    results.send(Ok(Outcome::Done)).unwrap();
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop().await;
}

#[tokio::test]
async fn a_retry_waits_for_a_thread_that_middleware_has_not_awaited() {
    let runs = Arc::new(Runs::default());
    let (handler, results) = BlockingHandler::new(&runs);
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.middleware(Impatient).handler(handler));
    while runs.highest() == 0 {
        tokio::task::yield_now().await;
    }
    fixture.pass(60.seconds()).await;
    assert_eq!(runs.highest(), 1, "two runs at once");
    results.send(Ok(Outcome::Done)).unwrap();
    assert_eq!(fixture.wait_finished().await, "Retry");
    fixture.wait_settled().await;
    results.send(Ok(Outcome::Done)).unwrap();
    fixture.advance_until(100.millis(), &Observed::Started { attempt: 2, deliveries: 2 }).await;
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop().await;
}
