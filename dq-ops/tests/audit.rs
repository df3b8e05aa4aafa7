use std::sync::{Arc, Mutex};

use dq_core::{Backend, Cancelled, Dq, Due, DurationExt, JobRef, MemoryBackend, VirtualClock};
use dq_ops::{
    Actor, AuditOutcome, BulkAction, JobFilter, Ops, OpsError, Role, ScheduleDefinition,
    ScheduleRequest, SimulationRequest,
};
use serde_json::json;

use crate::fixture::{Fixture, START, at, filter, key, queue};
use crate::schedules::nightly;

#[tokio::test]
async fn a_reader_changes_nothing_and_the_audit_has_every_attempt() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", Due::After(1.hours())).await;
    fixture.admin().put_schedule("report", &nightly("REPORT")).await.unwrap();
    let session = fixture.session(Role::Reader);
    let (mail, job, start) = (&fixture.queue, &key("a"), at(START));

    let denied = [
        session.cancel(mail, job).await.err(),
        session.reschedule(mail, job, Due::NOW).await.err(),
        session.run_now(mail, job).await.err(),
        session.replay(mail, job).await.err(),
        session.remove(mail, job).await.err(),
        session.pause(mail).await.err(),
        session.resume(mail).await.err(),
        session.purge(mail, "MAIL").await.err(),
        session.bulk(mail, BulkAction::Cancel, &JobFilter::default(), None).await.err(),
        session.schedule(mail, ScheduleRequest::new("1")).await.err(),
        session.put_schedule("report", &nightly("MAIL")).await.err(),
        session.pause_schedule("report").await.err(),
        session.resume_schedule("report").await.err(),
        session.skip_next("report").await.err(),
        session.run_schedule("report").await.err(),
        session.backfill("report", start, start + 1.hours()).await.err(),
        session.remove_schedule("report").await.err(),
    ];
    let unaudited = [
        session.simulate(&SimulationRequest::default()).await.err(),
        session.audit(10).err(),
        fixture.session(Role::Operator).audit(10).err(),
    ];
    for error in denied.iter().chain(&unaudited) {
        assert!(matches!(error, Some(OpsError::Forbidden { .. })), "{error:?}");
    }

    fixture.session(Role::Operator).cancel(mail, job).await.unwrap();
    fixture.session(Role::Operator).pause_schedule("report").await.unwrap();
    let audit = fixture.admin().audit(usize::MAX).unwrap();
    assert_eq!(audit.len(), 2 + denied.len() + 2);
    let [paused, cancelled, refused, ..] = &audit[..] else { unreachable!() };
    assert_eq!((paused.action.as_str(), paused.queue.as_str()), ("pause_schedule", "REPORT"));
    assert_eq!(paused.target.as_deref(), Some("schedule:report"));
    assert_eq!((cancelled.action.as_str(), cancelled.target.as_deref()), ("cancel", Some("key:a")));
    assert_eq!((cancelled.actor.as_str(), cancelled.role), ("ann", Role::Operator));
    assert_eq!(cancelled.outcome, AuditOutcome::Ok { changed: 1 });
    assert!(matches!(refused.outcome, AuditOutcome::Failed { .. }));
}

/// A store that never finishes a cancellation.
#[derive(Debug)]
struct Stuck(MemoryBackend);

#[dq_core::async_trait]
impl dq_core::Layer for Stuck {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn cancel(&self, _: &[JobRef]) -> dq_core::Result<Vec<Cancelled>> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_write_whose_caller_goes_away_is_in_the_audit() {
    let store = Stuck(MemoryBackend::new(Arc::new(VirtualClock::default())));
    let dq = Dq::builder().backend(Arc::new(store)).connect().await.unwrap();
    let entries = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&entries);
    let ops =
        Ops::builder(dq).audit_to(move |entry| sink.lock().unwrap().push(entry.clone())).build();
    let session = ops.session(Actor::new("ann", Role::Admin));
    let (mail, job) = (queue("MAIL"), key("a"));

    let mut cancel = Box::pin(session.cancel(&mail, &job));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(cancel.as_mut().poll(&mut context).is_pending());
    assert!(entries.lock().unwrap().is_empty());
    drop(cancel);

    assert_eq!(entries.lock().unwrap()[0].outcome, AuditOutcome::Interrupted);
}

#[tokio::test]
async fn the_audit_keeps_little_of_what_a_caller_wrote() {
    let fixture = Fixture::new().await;
    let long = "a\u{85}".repeat(100_000);
    let filter = filter(json!({"error": long}));
    let mut request = ScheduleRequest::new("1");
    request.key = Some(long.clone());
    let mut definition = ScheduleDefinition::default();
    (definition.queue, definition.every) = (long.clone(), Some("1h".to_owned()));
    let admin = fixture.admin();

    admin.bulk(&fixture.queue, BulkAction::Cancel, &filter, None).await.unwrap_err();
    admin.schedule(&fixture.queue, request).await.unwrap_err();
    admin.put_schedule(&long, &definition).await.unwrap_err();

    let audit = admin.audit(10).unwrap();
    assert_eq!(audit[0].queue, "", "an invalid queue name");
    for entry in audit {
        let AuditOutcome::Failed { error } = &entry.outcome else { panic!("{entry:?}") };
        for text in [entry.target.as_ref().unwrap(), error] {
            assert!(text.chars().count() <= 512 && !text.contains(char::is_control), "{text:?}");
        }
    }
}
