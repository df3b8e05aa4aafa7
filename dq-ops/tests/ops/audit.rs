//! Roles and the audit.

use std::sync::{Arc, Mutex};

use dq_core::{
    Backend, Cancelled, Dq, Due, DurationExt, JobRef, MemoryBackend, QueueName, VirtualClock,
};
use dq_ops::{Actor, AuditOutcome, BulkAction, JobFilter, Ops, OpsError, Role, ScheduleRequest};

use crate::ops::fixture::{Fixture, key, with_error};

#[tokio::test]
async fn each_role_may_do_what_the_one_before_may_and_every_write_is_in_the_audit() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", "1", Due::After(1.hours())).await;
    let all = JobFilter::default();
    for role in [Role::Viewer, Role::Reader] {
        let session = fixture.session(role);
        let (queue, target) = (&fixture.queue, &key("a"));
        let denied = [
            session.cancel(queue, target).await.err(),
            session.reschedule(queue, target, Due::NOW).await.err(),
            session.run_now(queue, target).await.err(),
            session.replay(queue, target).await.err(),
            session.remove(queue, target).await.err(),
            session.pause(queue).await.err(),
            session.resume(queue).await.err(),
            session.purge(queue, "MAIL").await.err(),
            session.bulk(queue, BulkAction::Cancel, &all, None).await.err(),
            session.schedule(queue, ScheduleRequest::new("1")).await.err(),
            session.audit(10).err(),
        ];
        for error in denied {
            assert!(matches!(error, Some(OpsError::Forbidden { .. })), "{role}: {error:?}");
        }
    }
    let operator = fixture.session(Role::Operator);
    assert!(matches!(
        operator.purge(&fixture.queue, "MAIL").await,
        Err(OpsError::Forbidden { .. })
    ));
    operator.cancel(&fixture.queue, &key("a")).await.unwrap();

    let audit = fixture.admin().audit(usize::MAX).unwrap();
    assert_eq!(audit.len(), 1 + 2 * 10 + 2);
    let entry = &audit[0];
    assert_eq!((entry.action.as_str(), entry.target.as_deref()), ("cancel", Some("key:a")));
    assert_eq!((entry.actor.as_str(), entry.role), ("ann", Role::Operator));
    assert_eq!(entry.outcome, AuditOutcome::Ok { changed: 1 });
    assert!(matches!(audit[1].outcome, AuditOutcome::Failed { .. }));
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
    let (queue, target) = (QueueName::new("MAIL").unwrap(), key("a"));
    let mut cancel = Box::pin(session.cancel(&queue, &target));
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
    let viewer = fixture.session(Role::Viewer);
    let filter = with_error(&long);
    viewer.bulk(&fixture.queue, BulkAction::Cancel, &filter, None).await.unwrap_err();
    let mut request = ScheduleRequest::new("1");
    request.key = Some(long);
    viewer.schedule(&fixture.queue, request.clone()).await.unwrap_err();
    fixture.admin().schedule(&fixture.queue, request).await.unwrap_err();
    for entry in fixture.admin().audit(10).unwrap() {
        let AuditOutcome::Failed { error } = &entry.outcome else { panic!("{entry:?}") };
        for text in [entry.target.as_ref().unwrap(), error] {
            assert!(text.chars().count() <= 512 && !text.contains(char::is_control), "{text:?}");
        }
    }
}
