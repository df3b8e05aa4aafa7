//! Read models and actions on the memory store, with a virtual clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Clock, Cursor, DeadKind, DeadReason, Dq, Due,
    DurationExt, ErrorKind, JobId, JobRef, JobState, LeasedJob, MemoryBackend, Page, QueueName,
    Settlement, Target, Timestamp, Verdict, VirtualClock, Want,
};
use dq_ops::{
    Actor, AuditOutcome, BulkAction, CancelResult, EventKind, JobFilter, JobQuery, Ops, OpsError,
    Role, ScheduleRequest, ScheduleResult, Session, WaitReason, parse_target,
};

struct Fixture {
    clock: Arc<VirtualClock>,
    dq: Dq,
    ops: Ops,
    queue: QueueName,
}

impl Fixture {
    async fn new() -> Self {
        let clock = Arc::new(VirtualClock::default());
        let store = Arc::new(MemoryBackend::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let dq = Dq::builder()
            .backend(store)
            .clock(Arc::clone(&clock) as Arc<dyn Clock>)
            .connect()
            .await
            .unwrap();
        let (ops, queue) = (Ops::new(dq.clone()), QueueName::new("MAIL").unwrap());
        Self { clock, dq, ops, queue }
    }

    fn session(&self, role: Role) -> Session {
        self.ops.session(Actor::new("ann", role))
    }

    fn admin(&self) -> Session {
        self.session(Role::Admin)
    }

    async fn schedule(&self, key: &str, payload: &str, due: Due) -> JobId {
        let mut request = ScheduleRequest::new(Bytes::from(payload.to_owned()));
        (request.key, request.due) = (Some(key.to_owned()), due);
        self.admin().schedule(&self.queue, request).await.unwrap().id
    }

    async fn claim(&self) -> Vec<LeasedJob> {
        let wants = [Want::new(self.queue.clone(), 100, 1.minutes())];
        self.dq.backend().claim(ClaimParams::new(&wants, 100, "web-3")).await.unwrap().jobs
    }

    async fn settle(&self, job: &LeasedJob, verdict: Verdict) {
        self.dq.backend().settle(&[Settlement::new(job.lease(), verdict)]).await.unwrap();
    }

    /// Schedules jobs and lets them die for these reasons.
    async fn dead(&self, reasons: &[&str]) -> Vec<JobId> {
        let mut ids = Vec::new();
        for (number, reason) in reasons.iter().enumerate() {
            ids.push(self.schedule(&format!("dead-{number}"), "1", Due::NOW).await);
            for job in self.claim().await {
                let reason = DeadReason::new(DeadKind::Exhausted, *reason);
                self.settle(&job, Verdict::Dead { reason, failed: true }).await;
            }
            self.clock.advance(1.seconds());
        }
        ids
    }
}

fn with_error(text: &str) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.error = Some(text.to_owned());
    filter
}

fn with_key_prefix(text: &str) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.key_prefix = Some(text.to_owned());
    filter
}

fn key(text: &str) -> Target {
    parse_target(&format!("key:{text}")).unwrap()
}

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
async fn the_timeline_tells_why_a_job_does_not_run() {
    let fixture = Fixture::new().await;
    fixture.schedule("order", "1", Due::After(1.minutes())).await;
    let session = fixture.session(Role::Viewer);
    let timeline = async || session.timeline(&fixture.queue, &key("order")).await.unwrap();
    assert_eq!(timeline().await.now, Some(WaitReason::NotDue { in_ms: 60_000 }));

    fixture.clock.advance(1.minutes());
    assert_eq!(timeline().await.now, Some(WaitReason::NoRunner));
    fixture.admin().pause(&fixture.queue).await.unwrap();
    assert_eq!(timeline().await.now, Some(WaitReason::Paused));
    fixture.admin().resume(&fixture.queue).await.unwrap();

    fixture.clock.advance(4.millis());
    let job = fixture.claim().await.remove(0);
    let seen = timeline().await;
    assert_eq!(seen.now, Some(WaitReason::Running { worker: Some("web-3".to_owned()) }));
    let claimed = EventKind::Claimed { worker: Some("web-3".to_owned()), late_ms: Some(4) };
    assert_eq!(seen.events.last().unwrap().kind, claimed);

    fixture.settle(&job, Verdict::retry(Due::After(5.seconds()), "connect refused")).await;
    let kinds: Vec<_> = timeline().await.events.into_iter().map(|event| event.kind).collect();
    let failed = EventKind::Failed { error: "connect refused".to_owned(), attempts: 1 };
    assert_eq!(kinds, [EventKind::Scheduled, failed]);

    let missing = session.timeline(&fixture.queue, &key("other")).await.unwrap_err();
    assert!(matches!(missing, OpsError::NotFound { job: Some(_), .. }));
}

#[tokio::test]
async fn the_events_of_a_timeline_are_in_order() {
    let fixture = Fixture::new().await;
    let events = async |id: JobId| {
        let timeline = fixture.admin().timeline(&fixture.queue, &Target::Id(id)).await.unwrap();
        timeline
            .events
            .into_iter()
            .map(|event| {
                let name = serde_json::to_value(event.kind).unwrap();
                name["event"].as_str().unwrap().to_owned()
            })
            .collect::<Vec<_>>()
    };
    let order = fixture.schedule("order", "1", Due::NOW).await;
    fixture.claim().await;
    fixture.clock.advance(2.minutes());
    fixture.claim().await;
    assert_eq!(events(order).await, ["scheduled", "due", "lost", "claimed"]);
    fixture.clock.advance(2.minutes());
    assert_eq!(events(order).await, ["scheduled", "due", "lost"]);
    let job = fixture.claim().await.remove(0);
    fixture.settle(&job, Verdict::Done).await;
    assert_eq!(events(order).await, ["scheduled", "due", "lost", "claimed", "ended"]);

    // Lost once, then dead, then removed.
    let removed = fixture.schedule("removed", "1", Due::NOW).await;
    fixture.claim().await;
    fixture.clock.advance(2.minutes());
    let job = fixture.claim().await.remove(0);
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    fixture.settle(&job, Verdict::Dead { reason, failed: true }).await;
    fixture.admin().remove(&fixture.queue, &Target::Id(removed)).await.unwrap();
    assert_eq!(events(removed).await, ["scheduled", "due", "lost", "claimed", "ended"]);

    // Cancelled an hour before its due time, and looked at later.
    let early = fixture.schedule("early", "1", Due::After(2.hours())).await;
    fixture.clock.advance(1.hours());
    fixture.admin().cancel(&fixture.queue, &key("early")).await.unwrap();
    fixture.clock.advance(3.hours());
    assert_eq!(events(early).await, ["scheduled", "ended"]);

    // Cancelled while it waits for another attempt.
    let again = fixture.schedule("again", "1", Due::NOW).await;
    let job = fixture.claim().await.remove(0);
    fixture.settle(&job, Verdict::retry(Due::After(2.hours()), "no")).await;
    fixture.admin().cancel(&fixture.queue, &key("again")).await.unwrap();
    assert_eq!(events(again).await, ["scheduled", "claimed", "failed", "ended"]);
}

#[tokio::test]
async fn a_job_waits_for_a_free_slot_only_while_a_runner_listens() {
    let fixture = Fixture::new().await;
    fixture.schedule("order", "1", Due::NOW).await;
    let announce = async |running: u64, omitted: u64| {
        let info = format!(
            r#"{{"format":1,"host":"h","pid":7,"version":"0.1.0","started":1000,"stopping":false,
                "concurrency":8,"running":{running},"skew_ms":null,"omitted_queues":{omitted},"queues":[
                {{"queue":"MAIL","concurrency":2,"running":{running},"lateness":[2,3],"run_time":[]}}]}}"#
        );
        let announcement = dq_core::Announcement::new("web-3", info, 60.seconds());
        fixture.dq.backend().announce(announcement).await.unwrap();
        let seen = fixture.admin().timeline(&fixture.queue, &key("order")).await.unwrap();
        (seen.now.unwrap(), seen.presence)
    };
    let (reason, presence) = announce(2, 0).await;
    assert_eq!(reason, WaitReason::NoFreeSlot);
    assert_eq!(
        (presence.runners, presence.free_slots, presence.slots),
        (Some(1), Some(0), Some(2))
    );
    // One that serves queues which it could not announce may have one.
    assert_eq!(announce(2, 1).await.0, WaitReason::Unknown);
    assert_eq!(announce(1, 0).await.0, WaitReason::Claimable);
    let queue = fixture.admin().queue(&fixture.queue).await.unwrap();
    assert_eq!(queue.lateness.unwrap().p99_ms, 2);
    assert_eq!((queue.runners, queue.free_slots), (Some(1), Some(1)));
}

#[tokio::test]
async fn actions_change_jobs_and_say_why_they_cannot() {
    let fixture = Fixture::new().await;
    let admin = fixture.admin();
    fixture.schedule("a", "1", Due::After(1.hours())).await;
    let moved = admin.reschedule(&fixture.queue, &key("a"), Due::After(2.hours())).await.unwrap();
    assert_eq!(moved.due, fixture.clock.now() + 2.hours());
    admin.run_now(&fixture.queue, &key("a")).await.unwrap();
    let job = fixture.claim().await.remove(0);
    let error = admin.cancel(&fixture.queue, &key("a")).await.unwrap_err();
    assert!(matches!(error, OpsError::Conflict { .. }), "{error}");
    fixture.settle(&job, Verdict::Done).await;
    let error = admin.cancel(&fixture.queue, &Target::Id(job.job.id)).await.unwrap_err();
    assert!(matches!(error, OpsError::Conflict { .. }), "it has ended: {error}");
    let error = admin.cancel(&fixture.queue, &key("a")).await.unwrap_err();
    assert!(matches!(error, OpsError::NotFound { .. }), "{error}");

    fixture.schedule("b", "1", Due::After(1.hours())).await;
    let cancelled = admin.cancel(&fixture.queue, &key("b")).await.unwrap();
    assert_eq!(cancelled, CancelResult::Cancelled);

    let ids = fixture.dead(&["boom"]).await;
    admin.replay(&fixture.queue, &Target::Id(ids[0])).await.unwrap();
    let error = admin.remove(&fixture.queue, &Target::Id(ids[0])).await.unwrap_err();
    assert!(matches!(error, OpsError::Conflict { .. }), "it is not dead: {error}");

    let error = admin.purge(&fixture.queue, "mail").await.unwrap_err();
    assert_eq!(error.store_kind(), Some(ErrorKind::InvalidInput));
    assert_eq!(admin.queue(&fixture.queue).await.unwrap().ready, 1);
    assert_eq!(admin.purge(&fixture.queue, "MAIL").await.unwrap(), 1);
}

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

/// A store in which cancellations never end.
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

/// A store that counts the calls of `browse`.
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

/// A store whose listings do not end.
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
