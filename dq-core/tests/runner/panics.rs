//! Panics in application code outside the handler: each is a failed attempt, and the job is
//! settled, or released at shutdown.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{DurationExt, HandlerResult, JobState, Outcome};

use crate::fixture::{Fixture, Observed, QUEUE, TestHandler};

#[derive(Debug)]
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the drop is broken");
    }
}

#[derive(Debug)]
struct PanicsOnDisplay;

impl fmt::Display for PanicsOnDisplay {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("the display is broken")
    }
}

impl std::error::Error for PanicsOnDisplay {}

/// Panics at the second `Display`.
#[derive(Debug, Default)]
struct DisplayedOnce(AtomicBool);

impl fmt::Display for DisplayedOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(!self.0.swap(true, Ordering::SeqCst), "the display is broken");
        f.write_str("a plain error")
    }
}

impl std::error::Error for DisplayedOnce {}

#[derive(Debug)]
struct PanickingError(PanicsOnDrop);

impl fmt::Display for PanickingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain error")
    }
}

impl std::error::Error for PanickingError {}

async fn dead_message<F>(run: impl Fn() -> F + Send + Sync + 'static) -> String
where
    F: Future<Output = HandlerResult> + Send + 'static,
{
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let handler = TestHandler::new(move |_, _| run());
    fixture.start(|runner| {
        runner.handler(handler.with(|settings| {
            settings.timeout = Some(5.seconds());
            settings.max_attempts = Some(1);
        }))
    });
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.advance_until(1.seconds(), &Observed::Finished("Dead".to_owned())).await;
    fixture.stop().await;
    let dead = fixture.dq.queue(QUEUE).unwrap().browse(JobState::Dead).limit(1).await.unwrap();
    assert_eq!((dead.jobs.len(), dead.jobs[0].job.attempts), (1, 1));
    dead.jobs[0].dead.clone().unwrap().0.message
}

#[tokio::test]
async fn an_error_that_cannot_be_displayed() {
    let message = dead_message(async || Err(PanicsOnDisplay.into())).await;
    assert!(message.contains("panicked") && message.contains("the display is broken"), "{message}");
}

#[tokio::test]
async fn an_error_that_can_be_displayed_once() {
    let message = dead_message(async || Err(DisplayedOnce::default().into())).await;
    assert_eq!(message, "a plain error");
}

#[tokio::test]
async fn an_error_that_cannot_be_dropped() {
    let message = dead_message(async || Err(PanickingError(PanicsOnDrop).into())).await;
    assert_eq!(message, "a plain error");
}

#[tokio::test]
async fn a_panic_whose_value_cannot_be_dropped() {
    let message = dead_message(async || std::panic::panic_any(PanicsOnDrop)).await;
    assert!(message.contains("panicked"), "{message}");
}

#[tokio::test]
async fn a_value_that_cannot_be_dropped_when_the_handler_returns() {
    let message = dead_message(async || {
        let _value = PanicsOnDrop;
        Ok(Outcome::Done)
    });
    assert!(message.await.contains("the drop is broken"));
}

#[tokio::test]
async fn a_value_that_cannot_be_dropped_at_the_timeout() {
    let message = dead_message(async || {
        let _value = PanicsOnDrop;
        std::future::pending().await
    });
    assert!(message.await.contains("the drop is broken"));
}

#[tokio::test]
async fn a_job_whose_handler_cannot_be_dropped_at_shutdown_is_released() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let handler = TestHandler::new(async |_, _| {
        let _value = PanicsOnDrop;
        std::future::pending().await
    });
    fixture.start(|runner| runner.grace(1.seconds()).handler(handler));
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.request_stop();
    fixture.advance_until(100.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    assert_eq!(fixture.stats().await.ready, 1);
}
