//! What becomes of handlers that fail, in every way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::Backoff;
use dq_core::{DeadKind, DurationExt, JobState, Outcome};

use crate::rig::{Handle, QUEUE, Rig, Said};

async fn dead_reason(rig: &Rig) -> (DeadKind, String, Vec<u8>) {
    let queue = rig.dq.queue(QUEUE).unwrap();
    let page = queue.browse(JobState::Dead, None, 10).await.unwrap();
    assert_eq!(page.jobs.len(), 1);
    let (reason, _) = page.jobs[0].dead.clone().unwrap();
    (reason.kind, reason.message, page.jobs[0].job.payload.to_vec())
}

#[tokio::test]
async fn an_error_is_retried_after_the_backoff_and_then_dead() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    let backoff = Backoff { initial: 10.seconds(), factor: 3.0, jitter: 0.0, ..Backoff::default() };
    rig.start(|runner| {
        runner.handler(Handle::new(async |_, _| Err("no luck".into())).with(|settings| {
            settings.max_attempts = Some(3);
            settings.backoff = backoff.into();
        }))
    });
    for (attempt, delay) in [(1, 10.seconds()), (2, 30.seconds())] {
        rig.until(&Said::Started { attempt, deliveries: attempt }).await;
        assert_eq!(rig.until_finished().await, "Retry");
        rig.until_settled().await;
        let stats = rig.stats().await;
        assert_eq!(stats.next_due, Some(rig_now(&rig) + delay), "kept in the store");
        // One millisecond before the end of the backoff, nothing is due.
        rig.clock.advance(delay - 1.millis());
        assert_eq!(rig.stats().await.ready, 0);
        rig.clock.advance(1.millis());
    }
    rig.until(&Said::Started { attempt: 3, deliveries: 3 }).await;
    assert_eq!(rig.until_finished().await, "Dead");
    rig.until_settled().await;
    let (kind, message, _) = dead_reason(&rig).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Exhausted, "no luck"));
    rig.stop().await;
}

fn rig_now(rig: &Rig) -> dq_core::Timestamp {
    dq_core::Clock::now(&*rig.clock)
}

#[tokio::test]
async fn a_job_has_its_own_limit_of_attempts() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let job = queue.schedule(r#""x""#, "application/json").max_attempts(1);
    assert!(job.await.unwrap().is_stored());
    rig.start(|runner| runner.handler(Handle::new(async |_, _| Err("no".into()))));
    assert_eq!(rig.until_finished().await, "Dead");
    rig.stop().await;
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_harms_nobody_else() {
    let mut rig = Rig::new().await;
    rig.schedule("panic").await;
    rig.schedule("fine").await;
    rig.start(|runner| {
        let handle = Handle::new(async |_, payload: String| {
            assert_ne!(payload, "panic", "as told");
            Ok(Outcome::Done)
        });
        runner.handler(handle.with(|settings| settings.max_attempts = Some(1)))
    });
    let mut verdicts = [rig.until_finished().await, rig.until_finished().await];
    verdicts.sort();
    assert_eq!(verdicts, ["Dead", "Done"]);
    rig.stop().await;
    let (kind, message, _) = dead_reason(&rig).await;
    assert_eq!(kind, DeadKind::Exhausted);
    assert!(message.starts_with("panicked: ") && message.contains("as told"), "{message}");
}

#[tokio::test]
async fn a_handler_that_hangs_is_dropped_at_its_timeout() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    rig.start(|runner| {
        let handle = Handle::new(async |_, _| std::future::pending().await);
        runner.handler(handle.with(|settings| {
            settings.timeout = Some(5.seconds());
            settings.max_attempts = Some(1);
        }))
    });
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    rig.advance_until(1.seconds(), &Said::Finished("Dead".to_owned())).await;
    rig.until_settled().await;
    let (kind, message, _) = dead_reason(&rig).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Exhausted, "timed out after 5s"));
    rig.stop().await;
}

#[tokio::test]
async fn a_payload_that_does_not_decode_is_kept_with_its_bytes_and_uses_no_attempt() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let bytes = &b"{\"not\": \"a string\"}"[..];
    assert!(queue.schedule(bytes, "application/json").await.unwrap().is_stored());
    rig.start(|runner| runner.handler(Handle::done()));
    assert_eq!(rig.until_finished().await, "Dead");
    rig.until_settled().await;
    let (kind, message, payload) = dead_reason(&rig).await;
    assert_eq!(kind, DeadKind::Undecodable);
    assert!(message.contains("does not decode"), "{message}");
    assert_eq!(payload, bytes);
    let dead = queue.browse(JobState::Dead, None, 1).await.unwrap();
    assert_eq!(dead.jobs[0].job.attempts, 0);
    rig.stop().await;
}

#[tokio::test]
async fn another_content_type_is_undecodable_too() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    assert!(queue.schedule(r#""x""#, "text/plain").await.unwrap().is_stored());
    rig.start(|runner| runner.handler(Handle::done()));
    assert_eq!(rig.until_finished().await, "Dead");
    rig.until_settled().await;
    assert!(dead_reason(&rig).await.1.contains("text/plain"));
    rig.stop().await;
}

#[tokio::test]
async fn snooze_uses_no_attempt_and_skip_and_dead_say_so() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    let runs = Arc::new(AtomicU32::new(0));
    let handle = Handle::new(move |job, _| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(job.attempt(), 1, "a snooze is no attempt");
            match run {
                0 => Ok(Outcome::snooze(Duration::from_secs(60))),
                1 => Ok(Outcome::dead("never")),
                _ => Ok(Outcome::skip("paid")),
            }
        }
    });
    rig.start(|runner| runner.handler(handle));
    assert_eq!(rig.until_finished().await, "Snooze");
    rig.until_settled().await;
    rig.clock.advance(60.seconds());
    assert_eq!(rig.until_finished().await, "Dead");
    rig.until_settled().await;
    let (kind, message, _) = dead_reason(&rig).await;
    assert_eq!((kind, message.as_str()), (DeadKind::Rejected, "never"));
    assert_eq!(rig.dq.queue(QUEUE).unwrap().replay_all().await.unwrap(), 1);
    assert_eq!(rig.until_finished().await, "Skip");
    rig.until_settled().await;
    assert_eq!(rig.stats().await.totals.unwrap().skipped, 1);
    rig.stop().await;
}

#[tokio::test]
async fn an_absurd_snooze_is_a_failed_attempt() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    rig.start(|runner| {
        let handle = Handle::new(async |_, _| Ok(Outcome::snooze(Duration::MAX)));
        runner.handler(handle.with(|settings| settings.max_attempts = Some(1)))
    });
    assert_eq!(rig.until_finished().await, "Dead");
    rig.until_settled().await;
    assert!(dead_reason(&rig).await.1.contains("the handler snoozed"));
    rig.stop().await;
}
