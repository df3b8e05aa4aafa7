//! Single and bulk changes.

use std::sync::Arc;

use dq_core::{
    Backend, BrowseParams, Clock, Cursor, Dq, Due, DurationExt, ErrorKind, MemoryBackend, Page,
    QueueName, Target, Timestamp, Verdict, VirtualClock,
};
use dq_ops::{Actor, BulkAction, Ops, OpsError, Role, ScheduleRequest, ScheduleResult};

use crate::ops::fixture::{Fixture, key, with_error, with_key_prefix};

#[tokio::test]
async fn dead_jobs_are_grouped_by_error_and_replayed_by_group() {
    let fixture = Fixture::new().await;
    fixture.dead(&["order 1 not found", "connect refused", "order 22 not found"]).await;
    let admin = fixture.admin();
    let dead = admin.dead(&fixture.queue).await.unwrap();
    assert_eq!((dead.groups.len(), dead.examined, dead.complete), (2, 3, true));
    let group = &dead.groups[0];
    assert_eq!((group.pattern.as_str(), group.count), ("order # not found", 2));

    let filter = with_error(&group.search);
    let count = admin.count(&fixture.queue, BulkAction::Replay, &filter).await.unwrap();
    assert_eq!((count.matching, count.complete), (2, true));
    let replay = async |expected| {
        admin.bulk(&fixture.queue, BulkAction::Replay, &filter, Some(expected)).await
    };
    assert!(matches!(replay(1).await.unwrap_err(), OpsError::Conflict { .. }));
    assert_eq!(replay(2).await.unwrap().changed, 2);
    assert_eq!(admin.queue(&fixture.queue).await.unwrap().dead, 1);
}

#[tokio::test]
async fn a_repeated_request_schedules_one_job_even_after_its_end() {
    let fixture = Fixture::new().await;
    let schedule = async |key: &str, queue: &str| {
        let mut request = ScheduleRequest::new("1");
        request.idempotency_key = Some(key.to_owned());
        fixture.admin().schedule(&QueueName::new(queue).unwrap(), request).await
    };
    let first = schedule("request-1", "MAIL").await.unwrap();
    assert_eq!(first.result, ScheduleResult::Created);
    assert_eq!(schedule("request-1", "MAIL").await.unwrap().id, first.id);
    assert_ne!(schedule("request-1", "OTHER").await.unwrap().id, first.id);
    assert_ne!(schedule("request-2", "MAIL").await.unwrap().id, first.id);
    for job in fixture.claim().await {
        fixture.settle(&job, Verdict::Done).await;
    }
    let again = schedule("request-1", "MAIL").await.unwrap();
    assert_eq!((again.result, again.id), (ScheduleResult::Ended, first.id));
    assert!(fixture.claim().await.is_empty());
    assert!(schedule("", "MAIL").await.is_err());
}

#[tokio::test]
async fn queues_of_the_framework_cannot_be_changed() {
    let fixture = Fixture::new().await;
    let queue = QueueName::new("dq.anything").unwrap();
    let error = fixture.admin().purge(&queue, "dq.anything").await.unwrap_err();
    assert_eq!(error.store_kind(), Some(ErrorKind::InvalidInput));
}

/// A store with endless listings.
#[derive(Debug)]
struct Endless(MemoryBackend);

#[dq_core::async_trait]
impl dq_core::Layer for Endless {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn browse(&self, params: BrowseParams<'_>) -> dq_core::Result<Page> {
        let page = self.0.browse(params.after(None)).await?;
        let next = Cursor { at: Timestamp::EPOCH, seq: 1 };
        Ok(Page::new(page.jobs, Some(next)))
    }
}

#[tokio::test]
async fn an_expected_number_limits_a_bulk_that_cannot_be_counted() {
    let store = Arc::new(Endless(MemoryBackend::new(Arc::new(VirtualClock::default()))));
    let dq = Dq::builder().backend(store).connect().await.unwrap();
    let (session, queue) =
        (Ops::new(dq).session(Actor::new("ann", Role::Admin)), QueueName::new("MAIL").unwrap());
    for _ in 0..1_000 {
        let mut request = ScheduleRequest::new("1");
        request.due = Due::After(1.hours());
        session.schedule(&queue, request).await.unwrap();
    }
    let filter = with_key_prefix("a");
    let count = session.count(&queue, BulkAction::Cancel, &filter).await.unwrap();
    assert_eq!((count.matching, count.complete), (0, false));
    let error = session.bulk(&queue, BulkAction::Cancel, &filter, Some(0)).await.unwrap_err();
    assert!(matches!(error, OpsError::Conflict { .. }), "{error}");
}
