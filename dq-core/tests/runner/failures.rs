//! Handler failures: errors, panics, timeouts, undecodable payloads; dead jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::Backoff;
use dq_core::{DeadKind, DurationExt, JobState, Outcome};

use crate::runner::fixture::{Fixture, Observed, QUEUE, TestHandler};
use crate::runner::log_lines::log_lines;

async fn dead_reason(fixture: &Fixture) -> (DeadKind, String, Vec<u8>) {
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let page = queue.browse(JobState::Dead).limit(10).await.unwrap();
    assert_eq!(page.jobs.len(), 1);
    let (reason, _) = page.jobs[0].dead.clone().unwrap();
    (reason.kind, reason.message, page.jobs[0].job.payload.to_vec())
}

#[tokio::test]
async fn an_error_is_retried_after_the_backoff_and_then_dead() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let backoff = Backoff { initial: 10.seconds(), factor: 3.0, jitter: 0.0, ..Backoff::default() };
    fixture.start(|runner| {
        runner.handler(TestHandler::new(async |_, _| Err("no luck".into())).with(|settings| {
            settings.max_attempts = Some(3);
            settings.backoff = backoff.into();
        }))
    });
    for (attempt, delay) in [(1, 10.seconds()), (2, 30.seconds())] {
        fixture.wait_for(&Observed::Started { attempt, deliveries: attempt }).await;
        assert_eq!(fixture.wait_finished().await, "Retry");
        fixture.wait_settled().await;
        let stats = fixture.stats().await;
        assert_eq!(
            stats.next_due,
            Some(now(&fixture) + delay),
            "the due time is kept in the store"
        );
        fixture.clock.advance(delay - 1.millis());
        assert_eq!(fixture.stats().await.ready, 0, "the backoff ends in one millisecond");
        fixture.clock.advance(1.millis());
    }
    fixture.wait_for(&Observed::Started { attempt: 3, deliveries: 3 }).await;
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    let (kind, message, _) = dead_reason(&fixture).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Exhausted, "no luck"));
    fixture.stop().await;
}

fn now(fixture: &Fixture) -> dq_core::Timestamp {
    dq_core::Clock::now(&*fixture.clock)
}

#[tokio::test]
async fn a_snooze_uses_no_attempt_and_skip_and_dead_are_recorded() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let runs = Arc::new(AtomicU32::new(0));
    let handle = TestHandler::new(move |job, _| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(job.attempt(), 1, "a snooze is not an attempt");
            match run {
                0 => Ok(Outcome::snooze(Duration::from_secs(60))),
                1 => Ok(Outcome::dead("never")),
                _ => Ok(Outcome::skip("paid")),
            }
        }
    });
    fixture.start(|runner| runner.handler(handle));
    assert_eq!(fixture.wait_finished().await, "Snooze");
    fixture.wait_settled().await;
    fixture.clock.advance(60.seconds());
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    let (kind, message, _) = dead_reason(&fixture).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Rejected, "never"));
    assert_eq!(fixture.dq.queue(QUEUE).unwrap().replay_all().await.unwrap(), 1);
    assert_eq!(fixture.wait_finished().await, "Skip");
    fixture.wait_settled().await;
    assert_eq!(fixture.stats().await.totals.unwrap().skipped, 1);
    fixture.stop().await;
}

#[tokio::test]
async fn a_handler_can_delay_its_retry_which_is_a_failed_attempt() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let backoff = Backoff { initial: 10.seconds(), jitter: 0.0, ..Backoff::default() };
    let delays = [60.seconds(), Duration::MAX, 60.seconds()];
    fixture.start(|runner| {
        let handle = TestHandler::new(move |job, _| {
            let delay = delays[job.attempt() as usize - 1];
            async move { Ok(Outcome::retry_after(delay, "too many requests")) }
        });
        runner.handler(handle.with(|settings| {
            settings.max_attempts = Some(3);
            settings.backoff = backoff.into();
        }))
    });
    // The backoff is added; the error mentions a delay beyond the horizon.
    for (delay, error) in [
        (70.seconds(), "too many requests"),
        (20.seconds(), "too many requests; the handler asked for a retry: invalid input: the due"),
    ] {
        assert_eq!(fixture.wait_finished().await, "Retry");
        fixture.wait_settled().await;
        assert_eq!(fixture.stats().await.next_due, Some(now(&fixture) + delay));
        let queue = fixture.dq.queue(QUEUE).unwrap();
        let waiting = queue.browse(JobState::Scheduled).limit(1).await.unwrap();
        let last_error = waiting.jobs[0].last_error.clone().unwrap();
        assert!(last_error.starts_with(error), "{last_error}");
        fixture.clock.advance(delay);
    }
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    let (kind, message, _) = dead_reason(&fixture).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Exhausted, "too many requests"));
    fixture.stop().await;
}

#[tokio::test]
async fn a_job_is_dead_with_the_reason_its_payload_and_its_attempts() {
    let json = "application/json";
    let panics = || TestHandler::new(async |_, _| panic!("test panic"));
    let snoozes = || TestHandler::new(async |_, _| Ok(Outcome::snooze(Duration::MAX)));
    let hangs = || TestHandler::hangs().with(|settings| settings.timeout = Some(5.seconds()));
    let done = TestHandler::done;
    let (exhausted, undecodable) = (DeadKind::Exhausted, DeadKind::Undecodable);
    for (handler, payload, content_type, kind, message, attempts) in [
        (panics(), r#""x""#, json, exhausted, "panicked: test panic", 1),
        (snoozes(), r#""x""#, json, exhausted, "the handler snoozed: ", 1),
        (hangs(), r#""x""#, json, exhausted, "timed out after 5s", 1),
        (done(), r#"{"not": "a string"}"#, json, undecodable, "the payload does not decode", 0),
        (done(), r#""x""#, "text/plain", undecodable, "text/plain", 0),
    ] {
        let mut fixture = Fixture::new().await;
        let queue = fixture.dq.queue(QUEUE).unwrap();
        let job = queue.schedule(payload, content_type).max_attempts(1);
        assert!(job.await.unwrap().is_stored());
        fixture.start(|runner| runner.handler(handler));
        fixture.advance_until(1.seconds(), &Observed::Dead(kind)).await;
        fixture.wait_settled().await;
        let (found, text, stored) = dead_reason(&fixture).await;
        assert_eq!((found, stored), (kind, payload.as_bytes().to_vec()), "{message}");
        assert!(text.contains(message), "{message}: {text}");
        let dead = queue.browse(JobState::Dead).limit(1).await.unwrap();
        assert_eq!(dead.jobs[0].job.attempts, attempts, "{message}");
        let lines = log_lines();
        let line = lines.lines().rfind(|line| line.contains("ERROR")).unwrap();
        assert!(line.contains("dead"), "{line}");
        fixture.schedule("another job is not affected").await;
        fixture.stop_by(1.seconds()).await;
    }
}
