use std::sync::Arc;

use dq_core::{
    Backend, BrowseParams, Cursor, Dq, Due, DurationExt, MemoryBackend, Page, Timestamp, Verdict,
    VirtualClock,
};
use dq_ops::{Actor, BulkAction, Ops, OpsError, Role, ScheduleRequest, ScheduleResult};
use serde_json::json;

use crate::fixture::{Fixture, filter, queue};

#[tokio::test]
async fn dead_jobs_are_grouped_by_errors_that_differ_in_numbers() {
    let fixture = Fixture::new().await;
    fixture.dead(&["order 1 not found", "connect refused", "order 22 not found"]).await;

    let dead = fixture.admin().dead(&fixture.queue).await.unwrap();

    assert_eq!((dead.examined, dead.complete), (3, true));
    let groups = dead.groups.iter().map(|group| (group.pattern.as_str(), group.count));
    assert_eq!(groups.collect::<Vec<_>>(), [("order # not found", 2), ("connect refused", 1)]);
    assert!(dead.groups[0].first < dead.groups[0].last);
}

#[tokio::test]
async fn a_repeated_request_schedules_one_job_even_after_its_end() {
    let fixture = Fixture::new().await;
    let schedule = async |idempotency_key: &str, name: &str| {
        let mut request = ScheduleRequest::new("1");
        request.idempotency_key = Some(idempotency_key.to_owned());
        fixture.admin().schedule(&queue(name), request).await.unwrap()
    };

    let first = schedule("request-1", "MAIL").await;
    assert_eq!(first.result, ScheduleResult::Created);
    assert_eq!(schedule("request-1", "MAIL").await.id, first.id);
    assert_ne!(schedule("request-1", "OTHER").await.id, first.id);

    fixture.run_all(Verdict::Done).await;
    let again = schedule("request-1", "MAIL").await;
    assert_eq!((again.result, again.id), (ScheduleResult::Ended, first.id));
    assert!(fixture.claim().await.is_empty());
}

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
    let session = Ops::new(dq).session(Actor::new("ann", Role::Admin));
    let mail = queue("MAIL");
    for _ in 0..1_000 {
        let mut request = ScheduleRequest::new("1");
        request.due = Due::After(1.hours());
        session.schedule(&mail, request).await.unwrap();
    }
    let filter = filter(json!({"key_prefix": "a"}));

    let count = session.count(&mail, BulkAction::Cancel, &filter).await.unwrap();
    assert_eq!((count.matching, count.complete), (0, false));
    let error = session.bulk(&mail, BulkAction::Cancel, &filter, Some(0)).await.unwrap_err();
    assert!(matches!(error, OpsError::Conflict { .. }), "{error}");
}
