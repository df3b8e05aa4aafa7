//! Overviews, listings and searches, and which parts each role sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, DeadKind, DeadReason, Dq, Due, DurationExt, ErrorKind, JobState,
    MemoryBackend, Page, QueueName, Target, Verdict, VirtualClock,
};
use dq_ops::{Actor, BulkAction, JobQuery, Ops, OpsError, Role, ScheduleRequest};

use crate::ops::fixture::{Fixture, key, with_error, with_key_prefix};

#[tokio::test]
async fn the_overview_counts_and_says_how_long_the_oldest_job_waits() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", "1", Due::After(1.hours())).await;
    fixture.schedule("b", "1", Due::NOW).await;
    fixture.clock.advance(5.seconds());
    let overview = fixture.session(Role::Viewer).overview().await.unwrap();
    let queue = &overview.queues[0];
    assert_eq!((queue.scheduled, queue.ready, queue.oldest_ready_ms), (1, 1, 5_000));
    assert_eq!((overview.store.as_str(), overview.runners), ("memory", Some(0)));
    let text = serde_json::to_string(&overview).unwrap();
    assert_eq!(serde_json::from_str::<dq_ops::Overview>(&text).unwrap(), overview);

    let unknown = QueueName::new("NOBODY").unwrap();
    let error = fixture.admin().queue(&unknown).await.unwrap_err();
    assert!(matches!(error, OpsError::NotFound { job: None, .. }), "{error}");
}

#[tokio::test]
async fn the_overview_counts_a_slot_once_though_queues_share_it() {
    let fixture = Fixture::new().await;
    for (name, stopping, running) in [("web-1", false, 5), ("web-2", false, 0), ("web-3", true, 0)]
    {
        let info = format!(
            r#"{{"format":1,"host":"h","pid":7,"version":"0.1.0","started":1000,"stopping":{stopping},
                "concurrency":8,"running":{running},"skew_ms":null,"omitted_queues":0,"queues":[
                {{"queue":"MAIL","concurrency":6,"running":{running},"lateness":[],"run_time":[]}},
                {{"queue":"SMS","concurrency":4,"running":0,"lateness":[],"run_time":[]}}]}}"#
        );
        let announcement = dq_core::Announcement::new(name, info, 60.seconds());
        fixture.dq.backend().announce(announcement).await.unwrap();
    }
    let overview = fixture.session(Role::Viewer).overview().await.unwrap();
    // The first runner has 1 for mails and 3 for both, the second 6, 4 and 8; the third is
    // stopping.
    let free = overview.queues.iter().map(|queue| queue.free_slots);
    assert_eq!(free.collect::<Vec<_>>(), [Some(7), Some(7)]);
    assert_eq!(overview.free_slots, Some(11));
}

#[tokio::test]
async fn a_key_leads_to_the_job_that_had_it_last() {
    let fixture = Fixture::new().await;
    let session = fixture.session(Role::Viewer);
    let found = async || {
        let detail = session.job(&fixture.queue, &key("17")).await.unwrap().job;
        let timeline = session.timeline(&fixture.queue, &key("17")).await.unwrap().job;
        assert_eq!(timeline, detail);
        (detail.id, detail.state)
    };
    let end = async |verdict: Verdict| {
        let id = fixture.schedule("17", "1", Due::NOW).await;
        assert_eq!(found().await, (id, JobState::Ready), "the live one comes first");
        for job in fixture.claim().await {
            fixture.settle(&job, verdict.clone()).await;
        }
        fixture.clock.advance(1.seconds());
        id
    };
    let dead = || Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"));
    fixture.schedule("170", "1", Due::After(1.hours())).await;
    let missing = session.job(&fixture.queue, &key("17")).await.unwrap_err();
    assert!(matches!(missing, OpsError::NotFound { job: Some(_), .. }), "{missing}");
    let first = end(Verdict::Done).await;
    assert_eq!(found().await, (first, JobState::Ended));
    let second = end(dead()).await;
    assert_eq!(found().await, (second, JobState::Dead));
    let third = end(Verdict::skip("paid")).await;
    assert_eq!(found().await, (third, JobState::Ended));

    // In another queue, or beyond the latest 5,000.
    let other = QueueName::new("OTHER").unwrap();
    assert!(session.job(&other, &key("17")).await.is_err());
    let old = fixture.schedule("old", "1", Due::NOW).await;
    for job in fixture.claim().await {
        fixture.settle(&job, dead()).await;
    }
    for _ in 0..50 {
        for number in 0..100 {
            fixture.schedule(&format!("new-{number}"), "1", Due::NOW).await;
        }
        for job in fixture.claim().await {
            fixture.settle(&job, dead()).await;
        }
        fixture.clock.advance(1.seconds());
    }
    assert!(session.job(&fixture.queue, &key("old")).await.is_err());
    let by_id = session.job(&fixture.queue, &Target::Id(old)).await.unwrap();
    assert_eq!(by_id.job.state, JobState::Dead);
}

#[tokio::test]
async fn a_listing_is_paged_clamped_and_filtered() {
    let fixture = Fixture::new().await;
    for number in 0..7_u64 {
        let due = Due::After(number.minutes() + 1.minutes());
        fixture.schedule(&format!("order-{number}"), &format!("{{\"n\":{number}}}"), due).await;
    }
    let session = fixture.session(Role::Reader);
    let mut query = JobQuery::new(JobState::Scheduled);
    query.limit = 3;
    let mut keys = Vec::new();
    loop {
        let page = session.jobs(&fixture.queue, &query).await.unwrap();
        keys.extend(page.jobs.into_iter().filter_map(|job| job.key));
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(keys, (0..7).map(|number| format!("order-{number}")).collect::<Vec<_>>());

    query.after = None;
    query.limit = usize::MAX;
    assert_eq!(session.jobs(&fixture.queue, &query).await.unwrap().jobs.len(), 7);
    query.limit = 0;
    assert_eq!(session.jobs(&fixture.queue, &query).await.unwrap().jobs.len(), 1);

    query.limit = 2;
    query.contains = Some("\"n\":5".to_owned());
    let found = session.jobs(&fixture.queue, &query).await.unwrap();
    assert_eq!(found.jobs[0].key.as_deref(), Some("order-5"));
    let denied = fixture.session(Role::Viewer).jobs(&fixture.queue, &query).await.unwrap_err();
    assert!(matches!(denied, OpsError::Forbidden { needs: Role::Reader, .. }));

    query.contains = None;
    query.after = Some("garbage".to_owned());
    let error = session.jobs(&fixture.queue, &query).await.unwrap_err();
    assert_eq!(error.store_kind(), Some(ErrorKind::InvalidInput));
}

#[tokio::test]
async fn a_viewer_sees_neither_payload_nor_headers_and_redaction_changes_what_a_reader_sees() {
    let fixture = Fixture::new().await;
    let mut request = ScheduleRequest::new("{\"card\":\"4111\"}");
    request.headers.insert("secret".to_owned(), "4111".to_owned());
    let id = fixture.admin().schedule(&fixture.queue, request).await.unwrap().id;
    let target = Target::Id(id);

    let seen = fixture.session(Role::Viewer).job(&fixture.queue, &target).await.unwrap();
    assert!(!serde_json::to_string(&seen).unwrap().contains("4111"));
    let seen = fixture.session(Role::Reader).job(&fixture.queue, &target).await.unwrap();
    assert_eq!(seen.payload.unwrap().json.unwrap().as_str(), r#"{"card":"4111"}"#);

    let redacting = Ops::builder(fixture.dq.clone())
        .redact(|content| {
            content.payload = "{\"card\":\"hidden\"}".into();
            content.headers.remove("secret");
        })
        .build();
    let session = redacting.session(Actor::new("ann", Role::Admin));
    let seen = session.job(&fixture.queue, &target).await.unwrap();
    assert!(!serde_json::to_string(&seen).unwrap().contains("4111"));
    let mut query = JobQuery::new(JobState::Ready);
    query.contains = Some("4111".to_owned());
    assert!(session.jobs(&fixture.queue, &query).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn a_forecast_is_clamped() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", "1", Due::After(90.seconds())).await;
    let session = fixture.session(Role::Viewer);
    let forecast = session.forecast(&fixture.queue, 2.minutes(), 2).await.unwrap();
    assert_eq!(forecast.counts, [0, 1]);
    let forecast = session.forecast(&fixture.queue, Duration::MAX, usize::MAX).await.unwrap();
    assert_eq!(forecast.counts.len(), 240);
    assert_eq!(forecast.step_ms * 240, 366 * 86_400_000);
}

#[tokio::test]
async fn an_empty_or_endless_text_selects_no_jobs() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", "1", Due::After(1.hours())).await;
    let admin = fixture.admin();
    for text in [String::new(), "a".repeat(4_097)] {
        let by_key = with_key_prefix(&text);
        let by_error = with_error(&text);
        for filter in [by_key, by_error] {
            let errors = [
                admin.count(&fixture.queue, BulkAction::Cancel, &filter).await.err(),
                admin.bulk(&fixture.queue, BulkAction::Cancel, &filter, None).await.err(),
            ];
            for error in errors {
                assert_eq!(error.unwrap().store_kind(), Some(ErrorKind::InvalidInput));
            }
            let mut query = JobQuery::new(JobState::Scheduled);
            query.filter = filter;
            assert!(admin.jobs(&fixture.queue, &query).await.is_err());
        }
        let mut query = JobQuery::new(JobState::Scheduled);
        query.contains = Some(text);
        assert!(admin.jobs(&fixture.queue, &query).await.is_err());
    }
    assert_eq!(admin.queue(&fixture.queue).await.unwrap().scheduled, 1);
}

#[tokio::test]
async fn a_listing_by_error_does_not_tell_what_redaction_hides() {
    let fixture = Fixture::new().await;
    fixture.dead(&["mail to ann refused", "disk full"]).await;
    let ops = Ops::builder(fixture.dq.clone())
        .redact(|content| {
            for text in [&mut content.last_error, &mut content.reason].into_iter().flatten() {
                *text = text.replace("ann", "someone");
            }
        })
        .build();
    let session = ops.session(Actor::new("vic", Role::Viewer));
    let found = async |text: &str| {
        let mut query = JobQuery::new(JobState::Dead);
        query.filter.error = Some(text.to_owned());
        session.jobs(&fixture.queue, &query).await.unwrap().jobs.len()
    };
    assert_eq!(found("to a").await, 0);
    assert_eq!(found("to someone").await, 1);
    assert_eq!(found("full").await, 1);
}

/// Counts `browse` calls.
#[derive(Debug)]
struct Counting(MemoryBackend, AtomicUsize);

#[dq_core::async_trait]
impl dq_core::Layer for Counting {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn browse(&self, params: BrowseParams<'_>) -> dq_core::Result<Page> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.browse(params).await
    }
}

#[tokio::test]
async fn a_search_for_one_job_reads_pages_of_many() {
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(Counting(MemoryBackend::new(clock), AtomicUsize::new(0)));
    let dq = Dq::builder().backend(Arc::clone(&store) as Arc<dyn Backend>).connect().await.unwrap();
    let (session, queue) =
        (Ops::new(dq).session(Actor::new("ann", Role::Admin)), QueueName::new("MAIL").unwrap());
    for number in 0..120 {
        let mut request = ScheduleRequest::new(format!("\"{number:03}\""));
        request.due = Due::After(1.hours() + Duration::from_secs(number));
        session.schedule(&queue, request).await.unwrap();
    }
    let mut query = JobQuery::new(JobState::Scheduled);
    (query.limit, query.contains) = (1, Some("7\"".to_owned()));
    store.1.store(0, Ordering::Relaxed);
    let (mut pages, mut found) = (0, 0);
    loop {
        let page = session.jobs(&queue, &query).await.unwrap();
        (pages, found) = (pages + 1, found + page.jobs.len());
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(found, 12, "each match is found once");
    let calls = store.1.load(Ordering::Relaxed);
    assert!(calls <= 3 * pages, "{calls} calls for {pages} pages");
}

#[tokio::test]
async fn a_json_payload_is_shown_as_it_was_written() {
    let fixture = Fixture::new().await;
    let written = r#"{ "z": 123456789012345678901, "a": 1.50, "z": [] }"#;
    fixture.schedule("a", written, Due::After(1.hours())).await;
    let seen = fixture.session(Role::Reader).job(&fixture.queue, &key("a")).await.unwrap();
    let text = serde_json::to_string(&seen).unwrap();
    assert!(text.contains(r#""json":{"z":123456789012345678901,"a":1.50,"z":[]}"#), "{text}");
    assert_eq!(serde_json::from_str::<dq_ops::JobDetail>(&text).unwrap(), seen);
}

#[tokio::test]
async fn json_may_have_parameters_in_its_content_type() {
    let fixture = Fixture::new().await;
    let handle = fixture.dq.queue(&fixture.queue).unwrap();
    let job = handle.schedule("[1]", "application/json; charset=utf-8").after(1.hours()).key("a");
    assert!(job.await.unwrap().is_stored());
    let seen = fixture.session(Role::Reader).job(&fixture.queue, &key("a")).await.unwrap();
    let payload = seen.payload.unwrap();
    assert_eq!(payload.json.unwrap().as_str(), "[1]");
    assert_eq!(payload.content_type, "application/json; charset=utf-8");
}
