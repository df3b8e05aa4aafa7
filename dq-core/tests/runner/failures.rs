//! Handler failures: errors, panics, timeouts, undecodable payloads; dead jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Backoff, Clock, DeadKind, DurationExt, JobState, Outcome};

use crate::runner::fixture::{Fixture, Observed, TestHandler};
use crate::runner::log_lines::log_lines;

fn three_attempts(backoff: Backoff) -> QueueSettings {
    QueueSettings::new().max_attempts(3).backoff(Backoff { jitter: 0.0, ..backoff })
}

async fn assert_dead(fixture: &Fixture, kind: DeadKind, message: &str) {
    let (_, found, text) = fixture.dead_job().await;
    assert_eq!((found, text.as_str()), (kind, message));
}

#[tokio::test]
async fn an_error_is_retried_after_the_backoff_and_then_dead() {
    let backoff = Backoff { initial: 10.seconds(), factor: 3.0, ..Backoff::default() };
    let handler = TestHandler::new(async |_, _| Err("no luck".into()));
    let mut fixture = Fixture::running(handler.with(three_attempts(backoff))).await;
    for (attempt, delay) in [(1, 10.seconds()), (2, 30.seconds())] {
        fixture.wait_for(&Observed::Started { attempt, deliveries: attempt }).await;
        assert_eq!(fixture.wait_finished().await, "Retry");
        fixture.wait_settled().await;
        assert_eq!(fixture.stats().await.next_due, Some(fixture.clock.now() + delay));
        fixture.clock.advance(delay - 1.millis());
        assert_eq!(fixture.stats().await.ready, 0, "the backoff ends in one millisecond");
        fixture.clock.advance(1.millis());
    }
    fixture.wait_for(&Observed::Started { attempt: 3, deliveries: 3 }).await;
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    assert_dead(&fixture, DeadKind::Exhausted, "no luck").await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_snooze_uses_no_attempt_and_skip_and_dead_are_recorded() {
    let runs = Arc::new(AtomicU32::new(0));
    let handler = TestHandler::new(move |job, _| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(job.attempt(), 1, "a snooze is not an attempt");
            match run {
                0 => Ok(Outcome::snooze(60.seconds())),
                1 => Ok(Outcome::dead("never")),
                _ => Ok(Outcome::skip("paid")),
            }
        }
    });
    let mut fixture = Fixture::running(handler).await;
    assert_eq!(fixture.wait_finished().await, "Snooze");
    fixture.wait_settled().await;
    fixture.clock.advance(60.seconds());
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    assert_dead(&fixture, DeadKind::Rejected, "never").await;
    assert_eq!(fixture.queue().replay_all().await.unwrap(), 1);
    assert_eq!(fixture.wait_finished().await, "Skip");
    fixture.wait_settled().await;
    assert_eq!(fixture.stats().await.totals.unwrap().skipped, 1);
    fixture.stop().await;
}

#[tokio::test]
async fn a_handler_can_delay_its_retry_which_is_a_failed_attempt() {
    let delays = [60.seconds(), Duration::MAX, 60.seconds()];
    let handler = TestHandler::new(move |job, _| {
        let delay = delays[job.attempt() as usize - 1];
        async move { Ok(Outcome::retry_after(delay, "too many requests")) }
    });
    let backoff = Backoff { initial: 10.seconds(), ..Backoff::default() };
    let mut fixture = Fixture::running(handler.with(three_attempts(backoff))).await;
    // The backoff is added; the error mentions a delay beyond the horizon.
    for (delay, error) in [
        (70.seconds(), "too many requests"),
        (20.seconds(), "too many requests; the handler asked for a retry: invalid input: the due"),
    ] {
        assert_eq!(fixture.wait_finished().await, "Retry");
        fixture.wait_settled().await;
        assert_eq!(fixture.stats().await.next_due, Some(fixture.clock.now() + delay));
        let waiting = fixture.queue().browse(JobState::Scheduled).await.unwrap();
        let last_error = waiting.jobs[0].last_error.clone().unwrap();
        assert!(last_error.starts_with(error), "{last_error}");
        fixture.clock.advance(delay);
    }
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    assert_dead(&fixture, DeadKind::Exhausted, "too many requests").await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_job_is_dead_with_the_reason_its_payload_and_its_attempts() {
    let json = "application/json";
    let panics = TestHandler::new(async |_, _| panic!("test panic"));
    let snoozes = TestHandler::new(async |_, _| Ok(Outcome::snooze(Duration::MAX)));
    let hangs = TestHandler::hangs().with(QueueSettings::new().timeout(10_500.millis()));
    let done = TestHandler::done;
    let (exhausted, undecodable) = (DeadKind::Exhausted, DeadKind::Undecodable);
    for (handler, payload, content_type, kind, message, attempts) in [
        (panics, r#""x""#, json, exhausted, "panicked: test panic", 1),
        (snoozes, r#""x""#, json, exhausted, "the handler snoozed: ", 1),
        (hangs, r#""x""#, json, exhausted, "timed out after 10s 500ms", 1),
        (done(), r#"{"not": "a string"}"#, json, undecodable, "the payload does not decode", 0),
        (done(), r#""x""#, "text/plain", undecodable, "text/plain", 0),
    ] {
        let mut fixture = Fixture::new().await;
        let job = fixture.queue().schedule(payload, content_type).max_attempts(1);
        assert!(job.await.unwrap().is_stored());
        fixture.run(handler);
        fixture.advance_until(1.seconds(), &Observed::Dead(kind)).await;
        fixture.wait_settled().await;
        let (dead, found, text) = fixture.dead_job().await;
        assert_eq!((found, dead.job.attempts), (kind, attempts), "{message}");
        assert_eq!(dead.job.payload, payload);
        assert!(text.contains(message), "{message}: {text}");
        let lines = log_lines();
        let line = lines.lines().rfind(|line| line.contains("ERROR")).unwrap();
        assert!(line.contains("dead"), "{line}");
        fixture.stop_by(1.seconds()).await;
    }
}
