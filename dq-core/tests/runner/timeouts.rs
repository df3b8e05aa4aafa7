//! Timeouts cover middleware and handler, and are reported when nothing can be stopped.

use dq_core::config::QueueSettings;
use dq_core::{
    DurationExt, JobContext, JobError, JobResult, Middleware, Next, Outcome, async_trait,
};

use crate::runner::fixture::{FIRST, Fixture, Observed, TestHandler, finished};
use crate::runner::log_lines::log_lines;

#[derive(Clone, Copy)]
enum TestMiddleware {
    HangsBefore,
    HangsAfter,
    SkipsTimeouts,
    Impatient,
}

#[async_trait]
impl Middleware for TestMiddleware {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        match self {
            Self::HangsBefore => std::future::pending().await,
            Self::HangsAfter => {
                let _ = next.run(job).await;
                std::future::pending().await
            }
            Self::SkipsTimeouts => match next.run(job).await {
                Err(JobError::TimedOut(_)) => Ok(Outcome::skip("it was too slow")),
                result => result,
            },
            Self::Impatient => tokio::select! {
                result = next.run(job.clone()) => result,
                () = job.sleep(1.seconds()) => Err(JobError::Failed("too slow".into())),
            },
        }
    }
}

fn timeout() -> QueueSettings {
    QueueSettings::new().timeout(5.seconds())
}

#[tokio::test]
async fn middleware_sees_the_timeout_of_the_handler_and_is_dropped_if_it_hangs() {
    for (middleware, handler, verdict) in [
        (TestMiddleware::HangsBefore, TestHandler::done(), "Retry"),
        (TestMiddleware::HangsAfter, TestHandler::done(), "Retry"),
        (TestMiddleware::SkipsTimeouts, TestHandler::hangs(), "Skip"),
    ] {
        let mut fixture = Fixture::new().await;
        fixture.schedule("x").await;
        fixture.start(|runner| runner.middleware(middleware).handler(handler.with(timeout())));
        fixture.wait_for(&FIRST).await;
        fixture.advance_until(1.seconds(), &finished(verdict)).await;
        fixture.stop().await;
    }
}

#[tokio::test]
async fn a_blocking_handler_past_its_timeout_is_reported_and_its_result_counts() {
    let (mut fixture, blocking) = Fixture::blocking(timeout(), |runner| runner).await;
    fixture.advance_until(1.seconds(), &Observed::TimeoutExceeded).await;
    let text = log_lines();
    let warning = text.lines().find(|line| line.contains("exceeds its timeout")).unwrap();
    assert!(warning.contains("WARN") && warning.contains("queue=Q"), "{warning}");
    blocking.end(Ok(Outcome::Done));
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop().await;
}

#[tokio::test]
async fn a_retry_waits_for_a_thread_that_middleware_has_not_awaited() {
    let impatient = TestMiddleware::Impatient;
    let (mut fixture, blocking) =
        Fixture::blocking(QueueSettings::new(), |runner| runner.middleware(impatient)).await;
    fixture.pass(60.seconds()).await;
    assert_eq!(blocking.runs.highest(), 1, "two runs at once");
    blocking.end(Ok(Outcome::Done));
    assert_eq!(fixture.wait_finished().await, "Retry");
    fixture.wait_settled().await;
    blocking.end(Ok(Outcome::Done));
    fixture.advance_until(100.millis(), &Observed::Started { attempt: 2, deliveries: 2 }).await;
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop().await;
}
