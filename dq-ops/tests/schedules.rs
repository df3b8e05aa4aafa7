//! Schedules, the forecast and simulations, on the memory store with a virtual clock.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    Announcement, Backend, Clock, Dq, Due, DurationExt, JobId, JobKey, JobState, MemoryBackend,
    NewJob, QueueName, Timestamp, VirtualClock,
};
use dq_ops::{
    Actor, AuditOutcome, JobQuery, Ops, OpsError, Role, ScheduleDefinition, ScheduleRequest,
    ScheduleResult, Session, SimulationRequest, WaitReason, parse_target, parse_timestamp,
};
use serde_json::json;

struct Fixture {
    clock: Arc<VirtualClock>,
    ops: Ops,
}

/// A Saturday, the day before Stockholm sets its clocks forward.
const START: &str = "2027-03-27T10:00:00Z";

fn at(text: &str) -> Timestamp {
    parse_timestamp(text).unwrap()
}

impl Fixture {
    async fn new() -> Self {
        let clock = Arc::new(VirtualClock::new(at(START)));
        let store = Arc::new(MemoryBackend::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let builder = Dq::builder().backend(store as Arc<dyn Backend>);
        let dq = builder.clock(Arc::clone(&clock) as Arc<dyn Clock>).connect().await.unwrap();
        let ops = Ops::builder(dq).redact(|content| {
            if content.queue.as_str() == "SECRET" {
                content.payload = "\"hidden\"".into();
            }
            // Has no effect.
            content.queue = QueueName::new("OTHER").unwrap();
        });
        Self { clock, ops: ops.build() }
    }

    fn session(&self, role: Role) -> Session {
        self.ops.session(Actor::new("ann", role))
    }

    async fn nightly(&self, name: &str, queue: &str) {
        let changed = self.session(Role::Operator).put_schedule(name, &nightly(queue)).await;
        assert!(changed.unwrap());
    }

    /// The announcement is valid for a week.
    async fn announce(&self, name: &str) {
        let info = r#"{"format":1,"host":"h","pid":7,"version":"0.1.0","started":1000,
            "stopping":false,"concurrency":8,"running":0,"skew_ms":null,"omitted_queues":0,
            "queues":[]}"#;
        let announcement = Announcement::new(name, info, 7.days());
        self.ops.dq().backend().announce(announcement).await.unwrap();
    }
}

fn nightly(queue: &str) -> ScheduleDefinition {
    serde_json::from_value(json!({
        "queue": queue, "cron": "30 2 * * *", "tz": "Europe/Stockholm", "payload": {"region": "eu"},
        "catch_up": "all:3", "deadline": "6h",
    }))
    .unwrap()
}

fn is_gone<T>(result: Result<T, OpsError>) -> bool {
    matches!(result, Err(OpsError::NoSchedule { .. }))
}

#[tokio::test]
async fn a_schedule_is_shown_with_its_next_times_on_the_clock_of_its_zone() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "REPORT").await;
    let session = fixture.session(Role::Reader);
    let shown = session.recurring("report", 2).await.unwrap();
    let times: Vec<_> = shown.next.iter().map(|next| next.due.to_string()).collect();
    // 02:30 does not exist on that Sunday, so the job runs at the end of the gap.
    assert_eq!(times, ["2027-03-28T01:00:00.000Z", "2027-03-29T00:30:00.000Z"]);
    let local: Vec<_> = shown.next.iter().map(|next| next.local.as_deref().unwrap()).collect();
    assert_eq!(local, ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]);
    let summary = &shown.schedule;
    assert_eq!(summary.next_due, shown.next[0].due);
    assert_eq!((summary.catch_up.as_str(), summary.overlap.as_str()), ("all:3", "allow"));
    assert_eq!((summary.deadline_ms, summary.every_ms), (Some(21_600_000), None));
    assert_eq!(shown.payload.unwrap().json.unwrap().as_str(), r#"{"region":"eu"}"#);
    assert_eq!(session.schedules().await.unwrap(), [shown.schedule]);
    assert_eq!(session.recurring("report", usize::MAX).await.unwrap().next.len(), 100);
    assert!(is_gone(session.recurring("nothing", 1).await));
    assert!(session.recurring("", 1).await.is_err());
}

#[tokio::test]
async fn a_viewer_sees_no_payload_of_a_schedule_and_redaction_holds() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "SECRET").await;
    assert_eq!(fixture.session(Role::Viewer).recurring("report", 1).await.unwrap().payload, None);
    let shown = fixture.session(Role::Admin).recurring("report", 1).await.unwrap();
    assert_eq!(shown.payload.unwrap().json.unwrap().as_str(), "\"hidden\"");
}

#[tokio::test]
async fn what_redaction_hides_is_not_in_the_jobs_of_the_framework() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "SECRET").await;
    let session = fixture.session(Role::Admin);
    let schedule_jobs = QueueName::new("dq.schedules").unwrap();
    let job = session.job(&schedule_jobs, &parse_target("key:report").unwrap()).await.unwrap();
    assert_eq!(job.payload.unwrap().size, 0);
    let mut query = JobQuery::new(JobState::Scheduled);
    assert_eq!(session.jobs(&schedule_jobs, &query).await.unwrap().jobs.len(), 1);
    query.contains = Some("region".to_owned());
    assert!(session.jobs(&schedule_jobs, &query).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_a_finding_and_can_be_removed() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "REPORT").await;
    let session = fixture.session(Role::Operator);
    let dq = fixture.ops.dq();
    let schedule_jobs = QueueName::new("dq.schedules").unwrap();
    let due = at(START) + 1.hours();
    let damaged =
        NewJob::new(JobId::from_bytes([1; 16]), schedule_jobs, due, Bytes::from_static(b"{"));
    let damaged = damaged.key(JobKey::new("monthly").unwrap());
    dq.backend().schedule(vec![damaged]).await.unwrap();
    fixture.announce("web-1").await;
    let names: Vec<_> =
        session.schedules().await.unwrap().into_iter().map(|schedule| schedule.name).collect();
    assert_eq!(names, ["report"]);
    let findings = session.check().await;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((&*finding.severity, &*finding.code), ("error", "schedules.unreadable"));
    assert!(finding.cause.contains("the schedule monthly cannot be read"), "{}", finding.cause);
    assert!(finding.remedy.contains("dq schedules rm -- 'monthly'"), "{}", finding.remedy);
    session.remove_schedule("monthly").await.unwrap();
    assert_eq!(session.check().await, []);
}

#[tokio::test]
async fn a_schedule_that_no_runner_starts_is_a_finding() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "REPORT").await;
    let session = fixture.session(Role::Operator);
    let due = session.schedules().await.unwrap()[0].next_due;
    let is_found = async || {
        let findings = session.check().await;
        for finding in &findings {
            assert_eq!((&*finding.severity, &*finding.code), ("warning", "schedules.no-runner"));
            assert!(finding.cause.ends_with("of schedules: report"), "{}", finding.cause);
            assert!(finding.remedy.starts_with("start a program with a runner"));
        }
        findings.len() == 1
    };
    assert!(is_found().await, "there is no runner at all");
    fixture.announce("web-1").await;
    assert!(!is_found().await, "the runner serves all schedules");
    fixture.clock.set(due + 1.minutes());
    assert!(!is_found().await);
    fixture.clock.set(due + 3.minutes());
    assert!(is_found().await, "it does not");
    session.pause_schedule("report").await.unwrap();
    assert!(!is_found().await);
}

#[tokio::test]
async fn a_schedule_that_repeats_within_a_second_is_a_finding() {
    let fixture = Fixture::new().await;
    fixture.announce("web-1").await;
    let session = fixture.session(Role::Operator);
    let put = async |name: &str, every: &str| {
        let mut definition = ScheduleDefinition::default();
        (definition.queue, definition.every) = ("SYNC".to_owned(), Some(every.to_owned()));
        session.put_schedule(name, &definition).await.unwrap();
    };
    put("fine", "1s").await;
    assert_eq!(session.check().await, []);
    put("rapid", "10ms").await;
    let findings = session.check().await;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((&*finding.severity, &*finding.code), ("warning", "schedules.rapid"));
    assert!(finding.cause.contains("rapid (every 10ms)"), "{}", finding.cause);
    assert!(finding.remedy.contains("at least 1s"), "{}", finding.remedy);
}

#[tokio::test]
async fn a_definition_that_is_wrong_is_refused() {
    let fixture = Fixture::new().await;
    let session = fixture.session(Role::Operator);
    for (field, value) in [
        ("cron", json!("30 2 * *")),
        ("cron", json!(null)),
        ("every", json!("1h")),
        ("tz", json!("Stockholm")),
        ("queue", json!("")),
        ("queue", json!("dq.schedules")),
        ("catch_up", json!("some")),
        ("overlap", json!("maybe")),
        ("deadline", json!("soon")),
        ("jitter", json!("0s")),
    ] {
        let mut definition = serde_json::to_value(nightly("REPORT")).unwrap();
        definition[field] = value;
        let definition = serde_json::from_value(definition).unwrap();
        let error = session.put_schedule("report", &definition).await.unwrap_err();
        assert_eq!(error.kind(), "invalid input", "{field}: {error}");
    }
    assert!(session.schedules().await.unwrap().is_empty());
}

#[tokio::test]
async fn readers_change_no_schedule_and_every_attempt_is_in_the_audit() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "REPORT").await;
    let now = at(START);
    let session = fixture.session(Role::Reader);
    let denied = [
        session.put_schedule("report", &nightly("MAIL")).await.err(),
        session.pause_schedule("report").await.err(),
        session.resume_schedule("report").await.err(),
        session.skip_next("report").await.err(),
        session.run_schedule("report").await.err(),
        session.backfill("report", now, now + 1.hours()).await.err(),
        session.remove_schedule("report").await.err(),
    ];
    for error in &denied {
        assert!(matches!(error, Some(OpsError::Forbidden { .. })), "{error:?}");
    }
    let simulated = session.simulate(&SimulationRequest::default()).await;
    assert!(matches!(simulated, Err(OpsError::Forbidden { .. })));
    fixture.session(Role::Operator).pause_schedule("report").await.unwrap();
    let audit = fixture.session(Role::Admin).audit(100).unwrap();
    assert_eq!(audit.len(), 1 + denied.len() + 1);
    assert_eq!((audit[0].action.as_str(), audit[0].queue.as_str()), ("pause_schedule", "REPORT"));
    assert_eq!(audit[0].target.as_deref(), Some("schedule:report"));
    assert_eq!(audit[0].outcome, AuditOutcome::Ok { changed: 1 });
    assert!(matches!(audit[1].outcome, AuditOutcome::Failed { .. }));
}

#[tokio::test]
async fn the_audit_keeps_little_of_a_definition() {
    let fixture = Fixture::new().await;
    let mut definition = nightly("REPORT");
    definition.queue = "Q".repeat(100_000);
    let session = fixture.session(Role::Operator);
    assert!(session.put_schedule(&"n".repeat(100_000), &definition).await.is_err());
    let entry = fixture.session(Role::Admin).audit(1).unwrap().remove(0);
    assert_eq!(entry.queue, "");
    assert!(entry.target.unwrap().len() <= 512);
    let AuditOutcome::Failed { error } = entry.outcome else { panic!("{:?}", entry.outcome) };
    assert!(error.len() <= 512, "{error}");
}

#[tokio::test]
async fn no_runner_is_missed_that_is_not_announced() {
    let fixture = Fixture::new().await;
    fixture.nightly("report", "REPORT").await;
    let session = fixture.session(Role::Viewer);
    let schedule_jobs = QueueName::new("dq.schedules").unwrap();
    assert_eq!(session.queue(&schedule_jobs).await.unwrap().runners, None);
    assert_eq!(session.overview().await.unwrap().queues[0].runners, None);
    fixture.clock.advance(2.days());
    let timeline =
        session.timeline(&schedule_jobs, &parse_target("key:report").unwrap()).await.unwrap();
    assert_eq!(timeline.now, Some(WaitReason::Unknown));
}

async fn schedule(fixture: &Fixture, queue: &str, due: Due) {
    let mut request = ScheduleRequest::new("1");
    request.due = due;
    let queue = QueueName::new(queue).unwrap();
    fixture.session(Role::Operator).schedule(&queue, request).await.unwrap();
}

#[tokio::test]
async fn the_forecast_counts_by_hours_of_the_clock() {
    let fixture = Fixture::new().await;
    fixture.clock.advance(50.minutes());
    for minutes in [0, 5, 15, 20, 80, 60 * 24 * 6] {
        schedule(&fixture, "MAIL", Due::After(minutes.minutes())).await;
    }
    schedule(&fixture, "LATER", Due::After(2.days())).await;
    fixture.nightly("report", "REPORT").await;
    let report = QueueName::new("REPORT").unwrap();
    fixture.session(Role::Operator).pause(&report).await.unwrap();
    let session = fixture.session(Role::Viewer);
    let day = session.forecasts(24.hours()).await.unwrap();
    assert_eq!(day.queues.len(), 2, "{day:?}");
    let [mail, nightly] = &day.queues[..] else { panic!("{day:?}") };
    assert_eq!((&nightly.queue, nightly.due(), nightly.paused), (&report, 1, true));
    assert!(!mail.paused);
    assert_eq!((mail.queue.as_str(), mail.overdue, mail.due()), ("MAIL", 1, 4));
    let counts: Vec<_> = mail.hours.iter().map(|hour| hour.due).collect();
    assert_eq!((&counts[..4], counts.len()), (&[1, 2, 1, 0][..], 25));
    assert_eq!(mail.hours[1].from, at("2027-03-27T11:00:00Z"));
    assert_eq!(mail.hours[0].backlog, None, "no runner is known");
    assert_eq!(mail.peak.unwrap().due, 1);
    let week = session.forecasts(400.days()).await.unwrap();
    assert_eq!(week.queues.len(), 3);
    assert_eq!(week.queues[1].hours.len(), 7 * 24 + 1);
    assert_eq!(week.queues[2].due(), 7, "each night");
    assert!(session.forecasts(std::time::Duration::ZERO).await.is_ok());
}

#[tokio::test]
async fn a_simulation_plays_what_is_pending() {
    let fixture = Fixture::new().await;
    for _ in 0..6 {
        schedule(&fixture, "MAIL", Due::After(1.hours())).await;
    }
    let session = fixture.session(Role::Operator);
    let unknown = session.simulate(&SimulationRequest::default()).await.unwrap_err();
    assert_eq!(unknown.kind(), "conflict", "{unknown}");
    for (field, value, kind) in [
        ("load", json!(0), "invalid input"),
        ("window", json!("32d"), "invalid input"),
        ("run_time", json!({"MAIL": "0s"}), "invalid input"),
        ("start", json!("2020-01-01T00:00:00Z"), "conflict"),
    ] {
        let request = serde_json::from_value(json!({ field: value })).unwrap();
        let refused = session.simulate(&request).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{field}: {refused}");
    }
    let request: SimulationRequest = serde_json::from_value(json!({
        "window": "2h", "load": 2, "concurrency": {"MAIL": 3}, "default_run_time": "1m",
    }))
    .unwrap();
    let played = session.simulate(&request).await.unwrap();
    let mail = &played.queues[0];
    assert_eq!((mail.jobs, mail.late_max_ms, mail.backlog), (12, Some(180_000), 9));
    assert_eq!(mail.drained, Some(at("2027-03-27T11:03:00Z")));
}

#[tokio::test]
async fn a_simulation_that_nobody_awaits_keeps_others_out_until_it_ends() {
    let fixture = Fixture::new().await;
    schedule(&fixture, "MAIL", Due::After(1.hours())).await;
    let session = fixture.session(Role::Operator);
    let request: SimulationRequest =
        serde_json::from_value(json!({"default_concurrency": 3, "default_run_time": "1m"}))
            .unwrap();
    tokio::select! {
        biased;
        played = session.simulate(&request) => panic!("it has ended at once: {played:?}"),
        () = std::future::ready(()) => {}
    }
    let refused = session.simulate(&request).await.unwrap_err();
    assert_eq!(refused.kind(), "conflict", "{refused}");
    loop {
        match session.simulate(&request).await {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), "conflict", "{error}"),
        }
        tokio::task::yield_now().await;
    }
}
