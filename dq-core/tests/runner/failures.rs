//! Handler failures: errors, panics, timeouts, undecodable payloads; dead jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::Backoff;
use dq_core::{DeadKind, DurationExt, JobState, Outcome};

use crate::fixture::{FIRST, Fixture, Observed, QUEUE, TestHandler};
use crate::log_lines::log_lines;

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
async fn a_job_has_its_own_limit_of_attempts() {
    let mut fixture = Fixture::new().await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let job = queue.schedule(r#""x""#, "application/json").max_attempts(1);
    assert!(job.await.unwrap().is_stored());
    fixture.start(|runner| runner.handler(TestHandler::new(async |_, _| Err("no".into()))));
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.stop().await;
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_does_not_affect_other_jobs() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("panic").await;
    fixture.schedule("fine").await;
    fixture.start(|runner| {
        let handle = TestHandler::new(async |_, payload: String| {
            assert_ne!(payload, "panic", "test panic");
            Ok(Outcome::Done)
        });
        runner.handler(handle.with(|settings| settings.max_attempts = Some(1)))
    });
    let mut verdicts = [fixture.wait_finished().await, fixture.wait_finished().await];
    verdicts.sort();
    assert_eq!(verdicts, ["Dead", "Done"]);
    fixture.stop().await;
    let (kind, message, _) = dead_reason(&fixture).await;
    assert_eq!(kind, DeadKind::Exhausted);
    assert!(message.starts_with("panicked: ") && message.contains("test panic"), "{message}");
}

#[tokio::test]
async fn a_handler_that_hangs_is_dropped_at_its_timeout() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| {
        let handle = TestHandler::hangs();
        runner.handler(handle.with(|settings| {
            settings.timeout = Some(5.seconds());
            settings.max_attempts = Some(1);
        }))
    });
    fixture.wait_for(&FIRST).await;
    fixture.advance_until(1.seconds(), &Observed::Finished("Dead".to_owned())).await;
    fixture.wait_settled().await;
    let (kind, message, _) = dead_reason(&fixture).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Exhausted, "timed out after 5s"));
    fixture.stop().await;
}

#[tokio::test]
async fn a_payload_that_does_not_decode_is_kept_with_its_bytes_and_uses_no_attempt() {
    let mut fixture = Fixture::new().await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let bytes = &b"{\"not\": \"a string\"}"[..];
    assert!(queue.schedule(bytes, "application/json").await.unwrap().is_stored());
    fixture.start(|runner| runner.handler(TestHandler::done()));
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_for(&Observed::Dead(DeadKind::Undecodable)).await;
    fixture.wait_settled().await;
    let text = log_lines();
    assert!(text.contains("ERROR") && text.contains("undecodable"), "{text}");
    let (kind, message, payload) = dead_reason(&fixture).await;
    assert_eq!(kind, DeadKind::Undecodable);
    assert!(message.contains("does not decode"), "{message}");
    assert_eq!(payload, bytes);
    let dead = queue.browse(JobState::Dead).limit(1).await.unwrap();
    assert_eq!(dead.jobs[0].job.attempts, 0);
    fixture.stop().await;
}

#[tokio::test]
async fn another_content_type_is_undecodable() {
    let mut fixture = Fixture::new().await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    assert!(queue.schedule(r#""x""#, "text/plain").await.unwrap().is_stored());
    fixture.start(|runner| runner.handler(TestHandler::done()));
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    assert!(dead_reason(&fixture).await.1.contains("text/plain"));
    fixture.stop().await;
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
async fn a_snooze_out_of_range_is_a_failed_attempt() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| {
        let handle = TestHandler::new(async |_, _| Ok(Outcome::snooze(Duration::MAX)));
        runner.handler(handle.with(|settings| settings.max_attempts = Some(1)))
    });
    assert_eq!(fixture.wait_finished().await, "Dead");
    fixture.wait_settled().await;
    assert!(dead_reason(&fixture).await.1.contains("the handler snoozed"));
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
async fn an_id_that_is_given_twice_is_replayed_or_removed_once() {
    let mut fixture =
        Fixture::running(TestHandler::new(async |_, _| Ok(Outcome::dead("no")))).await;
    fixture.wait_settled().await;
    fixture.stop().await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let id = queue.browse(JobState::Dead).limit(1).await.unwrap().jobs[0].job.id;
    assert_eq!(queue.replay(&[id, id]).await.unwrap(), 1);
    assert_eq!(queue.remove(&[id, id]).await.unwrap(), 0, "it is no longer dead");
    assert_eq!(fixture.stats().await.ready, 1);
    fixture.start(|runner| runner.handler(TestHandler::new(async |_, _| Ok(Outcome::dead("no")))));
    fixture.wait_settled().await;
    fixture.stop().await;
    assert_eq!(queue.remove(&[id, id]).await.unwrap(), 1);
    assert_eq!(fixture.stats().await.dead, 0);
}
