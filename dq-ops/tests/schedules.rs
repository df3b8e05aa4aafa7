use bytes::Bytes;
use dq_core::{Backend, DurationExt, JobId, JobKey, JobState, NewJob};
use dq_ops::{Actor, JobQuery, Role, ScheduleDefinition};
use serde_json::json;

use crate::fixture::{Fixture, START, at, key, queue};

pub(crate) fn nightly(queue: &str) -> ScheduleDefinition {
    serde_json::from_value(json!({
        "queue": queue, "cron": "30 2 * * *", "tz": "Europe/Stockholm", "payload": {"region": "eu"},
    }))
    .unwrap()
}

impl Fixture {
    async fn put(&self, name: &str, definition: &ScheduleDefinition) {
        assert!(self.session(Role::Operator).put_schedule(name, definition).await.unwrap());
    }
}

#[tokio::test]
async fn a_schedule_is_shown_with_up_to_100_occurrences() {
    let fixture = Fixture::new().await;
    fixture.put("report", &nightly("REPORT")).await;
    let shown = fixture.session(Role::Reader).recurring("report", usize::MAX).await.unwrap();
    assert_eq!(shown.next.len(), 100);
    // 02:30 does not exist on that Sunday, so the job runs at the end of the gap.
    assert_eq!(shown.next[0].local.as_deref(), Some("2027-03-28T03:00:00+02:00"));
}

#[tokio::test]
async fn redaction_hides_a_schedules_payload_also_in_the_jobs_of_the_framework() {
    let fixture = Fixture::new().await;
    fixture.put("report", &nightly("SECRET")).await;
    let redacting = fixture.redacting(|content| {
        if content.queue.as_str() == "SECRET" {
            content.payload = "\"hidden\"".into();
        }
        // Has no effect.
        content.queue = queue("OTHER");
    });
    let session = redacting.session(Actor::new("ann", Role::Admin));
    let shown = session.recurring("report", 1).await.unwrap();
    assert_eq!(shown.payload.unwrap().json.unwrap().as_str(), "\"hidden\"");

    let schedule_jobs = queue("dq.schedules");
    let job = session.job(&schedule_jobs, &key("report")).await.unwrap();
    assert_eq!(job.payload.unwrap().size, 0);
    let mut query = JobQuery::new(JobState::Scheduled);
    assert_eq!(session.jobs(&schedule_jobs, &query).await.unwrap().jobs.len(), 1);
    query.contains = Some("region".to_owned());
    assert!(session.jobs(&schedule_jobs, &query).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_is_a_finding_and_can_be_removed() {
    let fixture = Fixture::new().await;
    fixture.put("report", &nightly("REPORT")).await;
    fixture.announce("web-1", json!({})).await;
    let (id, due) = (JobId::from_bytes([1; 16]), at(START) + 1.hours());
    let damaged = NewJob::new(id, queue("dq.schedules"), due, Bytes::from_static(b"{"));
    let damaged = damaged.key(JobKey::new("monthly").unwrap());
    fixture.ops.dq().backend().schedule(vec![damaged]).await.unwrap();

    let session = fixture.session(Role::Operator);
    let readable = session.schedules().await.unwrap();
    assert_eq!(readable.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["report"]);
    let finding = fixture.only_finding().await;
    assert_eq!((&*finding.severity, &*finding.code), ("error", "schedules.unreadable"));
    assert!(finding.cause.contains("the schedule monthly cannot be read"), "{}", finding.cause);
    assert!(finding.remedy.contains("dq schedules rm -- 'monthly'"), "{}", finding.remedy);

    session.remove_schedule("monthly").await.unwrap();
    assert_eq!(session.check().await, []);
}

#[tokio::test]
async fn a_schedule_that_no_runner_starts_is_a_finding() {
    let fixture = Fixture::new().await;
    fixture.put("report", &nightly("REPORT")).await;
    let session = fixture.session(Role::Operator);
    let due = session.schedules().await.unwrap()[0].next_due;
    let assert_missed = async |why: &str| {
        let finding = fixture.only_finding().await;
        assert_eq!(
            (&*finding.severity, &*finding.code),
            ("warning", "schedules.no-runner"),
            "{why}"
        );
        assert!(finding.cause.ends_with("of schedules: report"), "{}", finding.cause);
        assert!(finding.remedy.starts_with("start a program with a runner"), "{}", finding.remedy);
    };

    assert_missed("there is no runner at all").await;
    fixture.announce("web-1", json!({})).await;
    assert_eq!(session.check().await, [], "the runner serves all schedules");
    fixture.clock.set(due + 1.minutes());
    assert_eq!(session.check().await, [], "the runner may be about to look");
    fixture.clock.set(due + 3.minutes());
    assert_missed("the runner does not look").await;
    session.pause_schedule("report").await.unwrap();
    assert_eq!(session.check().await, [], "it is paused");
}

#[tokio::test]
async fn a_schedule_that_repeats_within_a_second_is_a_finding() {
    let fixture = Fixture::new().await;
    fixture.announce("web-1", json!({})).await;
    let every = |interval: &str| {
        let mut definition = ScheduleDefinition::default();
        (definition.queue, definition.every) = ("SYNC".to_owned(), Some(interval.to_owned()));
        definition
    };
    fixture.put("fine", &every("1s")).await;
    assert_eq!(fixture.admin().check().await, []);

    fixture.put("rapid", &every("10ms")).await;
    let finding = fixture.only_finding().await;
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
