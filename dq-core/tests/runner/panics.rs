//! Panics in application code outside the handler: each is a failed attempt, and the job is
//! settled, or released at shutdown.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use dq_core::config::QueueSettings;
use dq_core::{BoxError, DurationExt, HandlerResult, Outcome};

use crate::runner::fixture::{FIRST, Fixture, TestHandler, finished};

#[derive(Debug)]
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the drop is broken");
    }
}

/// Its `Display` panics after this many calls, and its drop panics if it has a value that does.
#[derive(Debug)]
struct TestError {
    calls_left: AtomicU32,
    _value: Option<PanicsOnDrop>,
}

impl TestError {
    fn boxed(calls_left: u32, value: Option<PanicsOnDrop>) -> BoxError {
        Self { calls_left: AtomicU32::new(calls_left), _value: value }.into()
    }
}

impl fmt::Display for TestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls_left = self.calls_left.load(Ordering::SeqCst);
        assert!(calls_left > 0, "the display is broken");
        self.calls_left.store(calls_left - 1, Ordering::SeqCst);
        f.write_str("a plain error")
    }
}

impl std::error::Error for TestError {}

async fn dead_message<F>(run: impl Fn() -> F + Send + Sync + 'static) -> String
where
    F: Future<Output = HandlerResult> + Send + 'static,
{
    let settings = QueueSettings::new().timeout(5.seconds()).max_attempts(1);
    let handler = TestHandler::new(move |_, _| run()).with(settings);
    let mut fixture = Fixture::running(handler).await;
    fixture.wait_for(&FIRST).await;
    fixture.advance_until(1.seconds(), &finished("Dead")).await;
    fixture.stop().await;
    let (dead, _, message) = fixture.dead_job().await;
    assert_eq!(dead.job.attempts, 1);
    message
}

#[tokio::test]
async fn each_panic_is_a_failed_attempt_with_a_message() {
    let returns = async || {
        let _value = PanicsOnDrop;
        Ok(Outcome::Done)
    };
    let hangs = async || {
        let _value = PanicsOnDrop;
        std::future::pending().await
    };
    for (message, wanted) in [
        (dead_message(async || Err(TestError::boxed(0, None))).await, "the display is broken"),
        (dead_message(async || Err(TestError::boxed(1, None))).await, "a plain error"),
        (
            dead_message(async || Err(TestError::boxed(9, Some(PanicsOnDrop)))).await,
            "a plain error",
        ),
        (dead_message(async || std::panic::panic_any(PanicsOnDrop)).await, "panicked"),
        (dead_message(returns).await, "the drop is broken"),
        (dead_message(hangs).await, "the drop is broken"),
    ] {
        assert!(message.contains(wanted), "{wanted}: {message}");
    }
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
    fixture.wait_for(&FIRST).await;
    fixture.stop_by(100.millis()).await;
    assert_eq!(fixture.stats().await.ready, 1);
}
