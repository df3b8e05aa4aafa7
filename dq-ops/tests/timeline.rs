use dq_core::{DeadKind, DeadReason, Due, DurationExt, JobId, Target, Verdict};
use dq_ops::{EventKind, Role, ScheduleRequest, WaitReason};
use serde_json::json;

use crate::fixture::{Fixture, key, queue, serves_mail};
use crate::schedules::nightly;

impl Fixture {
    async fn failed_twice_then_died(&self, kind: DeadKind, error: &str) -> JobId {
        let id = self.schedule("order", Due::NOW).await;
        for error in ["error 1", "error 2"] {
            self.run_all(Verdict::retry(Due::NOW, error)).await;
        }
        self.run_all(Verdict::dead(DeadReason::new(kind, error))).await;
        id
    }

    async fn events(&self, id: JobId) -> Vec<EventKind> {
        let timeline = self.admin().timeline(&self.queue, &Target::Id(id)).await.unwrap();
        timeline.events.into_iter().map(|event| event.kind).collect()
    }

    async fn errors(&self, id: JobId) -> Vec<String> {
        let errors = self.events(id).await.into_iter().filter_map(|event| match event {
            EventKind::Failed { error, attempt } => {
                Some(format!("failed, attempt {attempt}: {error}"))
            }
            EventKind::Dead { reason, attempt: Some(attempt) } => {
                Some(format!("dead, attempt {attempt}: {reason}"))
            }
            EventKind::Dead { reason, attempt: None } => Some(format!("dead: {reason}")),
            _ => None,
        });
        errors.collect()
    }

    async fn event_names(&self, id: JobId) -> Vec<String> {
        let name = |event| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().into();
        self.events(id).await.into_iter().map(name).collect()
    }
}

#[tokio::test]
async fn each_error_stands_beside_the_attempt_that_it_ended() {
    let fixture = Fixture::new().await;
    let failed = "failed, attempt 2: error 2";
    for (kind, death) in [
        (DeadKind::Exhausted, "dead, attempt 3: why"),
        (DeadKind::Rejected, "dead, attempt 3: why"),
        // These deaths are not attempts.
        (DeadKind::Lost, "dead: why"),
        (DeadKind::Late, "dead: why"),
        (DeadKind::Undecodable, "dead: why"),
    ] {
        let id = fixture.failed_twice_then_died(kind, "why").await;
        assert_eq!(fixture.errors(id).await, [failed, death], "{kind:?}");
        fixture.admin().remove(&fixture.queue, &Target::Id(id)).await.unwrap();
        assert_eq!(fixture.errors(id).await, [failed], "removed, {kind:?}");
    }
}

#[tokio::test]
async fn a_replayed_job_begins_anew() {
    let fixture = Fixture::new().await;
    let id = fixture.failed_twice_then_died(DeadKind::Exhausted, "error 3").await;

    fixture.admin().replay(&fixture.queue, &Target::Id(id)).await.unwrap();
    assert!(fixture.errors(id).await.is_empty());

    fixture.run_all(Verdict::retry(Due::NOW, "error 4")).await;
    assert_eq!(fixture.errors(id).await, ["failed, attempt 1: error 4"]);
}

#[tokio::test]
async fn a_lost_claim_comes_before_the_claim_that_followed_it() {
    let fixture = Fixture::new().await;
    for last in [Verdict::Done, Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"))] {
        let id = fixture.schedule("order", Due::NOW).await;
        fixture.claim().await;
        fixture.clock.advance(2.minutes());
        fixture.claim().await;
        assert_eq!(fixture.event_names(id).await, ["scheduled", "due", "lost", "claimed"]);

        fixture.clock.advance(2.minutes());
        assert_eq!(fixture.event_names(id).await, ["scheduled", "due", "lost"]);

        let dies = matches!(last, Verdict::Dead { .. });
        fixture.run_all(last).await;
        if dies {
            fixture.admin().remove(&fixture.queue, &Target::Id(id)).await.unwrap();
        }
        assert_eq!(fixture.event_names(id).await, ["scheduled", "due", "lost", "claimed", "ended"]);
    }
}

#[tokio::test]
async fn a_job_cancelled_before_its_due_time_never_became_due() {
    let fixture = Fixture::new().await;
    let early = fixture.schedule("early", Due::After(2.hours())).await;
    fixture.clock.advance(1.hours());
    fixture.admin().cancel(&fixture.queue, &key("early")).await.unwrap();
    fixture.clock.advance(3.hours());
    assert_eq!(fixture.event_names(early).await, ["scheduled", "ended"]);

    let retried = fixture.schedule("retried", Due::NOW).await;
    fixture.run_all(Verdict::retry(Due::After(2.hours()), "no")).await;
    fixture.admin().cancel(&fixture.queue, &key("retried")).await.unwrap();
    assert_eq!(fixture.event_names(retried).await, ["scheduled", "claimed", "failed", "ended"]);
}

#[tokio::test]
async fn a_job_waits_for_a_free_slot_only_while_a_runner_listens() {
    let fixture = Fixture::new().await;
    fixture.schedule("order", Due::NOW).await;
    let announced = async |running: u64, omitted_queues: u64| {
        let queues = json!([serves_mail(2, running)]);
        let fields =
            json!({"running": running, "omitted_queues": omitted_queues, "queues": queues});
        fixture.announce("web-3", fields).await;
        let seen = fixture.admin().timeline(&fixture.queue, &key("order")).await.unwrap();
        (seen.now.unwrap(), seen.presence)
    };

    let (reason, presence) = announced(2, 0).await;
    assert_eq!(reason, WaitReason::NoFreeSlot);
    assert_eq!((presence.free_slots, presence.slots), (Some(0), Some(2)));
    let (reason, _) = announced(2, 1).await;
    assert_eq!(reason, WaitReason::Unknown, "the runner may serve the queue unannounced");
    let (reason, _) = announced(1, 0).await;
    assert_eq!(reason, WaitReason::Claimable);
    fixture.admin().pause(&fixture.queue).await.unwrap();
    let (reason, _) = announced(1, 0).await;
    assert_eq!(reason, WaitReason::Paused);
}

#[tokio::test]
async fn a_job_waits_for_its_group() {
    let fixture = Fixture::new().await;
    fixture.announce("web-3", json!({"running": 0, "queues": [serves_mail(2, 0)]})).await;
    let change = serde_json::from_value(json!({"group_max_running": 1})).unwrap();
    let schedule = async |key: &str, group: &str| {
        let mut request = ScheduleRequest::new("1");
        (request.key, request.group) = (Some(key.to_owned()), Some(group.to_owned()));
        fixture.admin().schedule(&fixture.queue, request).await.unwrap();
    };
    schedule("running", "t-1").await;
    schedule("waits", "t-1").await;
    fixture.admin().limit(&fixture.queue, change).await.unwrap();
    assert_eq!(fixture.claim().await.len(), 1);
    schedule("other", "t-2").await;
    let reason = async |job: &'static str| {
        fixture.admin().timeline(&fixture.queue, &key(job)).await.unwrap().now.unwrap()
    };
    let full = WaitReason::GroupFull { group: "t-1".into(), running: 1 };
    assert_eq!(reason("waits").await, full);
    assert_eq!(reason("other").await, WaitReason::Claimable);

    let waiting = fixture.admin().waiting_groups(&fixture.queue).await.unwrap();
    assert_eq!((waiting.examined, waiting.complete), (2, true));
    let groups = waiting.groups.iter().map(|it| (it.group.as_str(), it.running, it.waiting));
    assert_eq!(groups.collect::<Vec<_>>(), [("t-1", 1, 1), ("t-2", 0, 1)]);
}

#[tokio::test]
async fn a_job_waits_for_the_limit_of_its_queue() {
    let fixture = Fixture::new().await;
    fixture.announce("web-3", json!({"running": 0, "queues": [serves_mail(2, 0)]})).await;
    let reason = async || {
        fixture.admin().timeline(&fixture.queue, &key("order")).await.unwrap().now.unwrap()
    };
    let limit = async |max_running: Option<u32>, rate: Option<&str>| {
        let change = json!({"max_running": max_running, "rate": rate});
        let change = serde_json::from_value(change).unwrap();
        fixture.admin().limit(&fixture.queue, change).await.unwrap()
    };
    fixture.schedule("first", Due::NOW).await;
    assert!(limit(Some(1), None).await && !limit(Some(1), None).await);
    fixture.run_all(Verdict::Throttle(Due::After(1.hours()))).await;
    fixture.schedule("order", Due::NOW).await;
    assert_eq!(reason().await, WaitReason::Throttled, "by the first job");
    let summary = fixture.admin().queue(&fixture.queue).await.unwrap();
    let limits = summary.limits.unwrap();
    assert!(limits.overridden && limits.opens_at.is_some() && limits.throttled, "{limits:?}");

    fixture.clock.advance(1.hours());
    assert_eq!(reason().await, WaitReason::Claimable);
    assert!(limit(None, Some("1/1h")).await);
    assert_eq!(reason().await, WaitReason::Claimable, "the first may start");
    assert_eq!(fixture.claim().await.len(), 1);
    let limits = fixture.admin().queue(&fixture.queue).await.unwrap().limits.unwrap();
    assert!(limits.opens_at.is_some() && !limits.throttled, "{limits:?}");
    assert!(fixture.admin().unlimit(&fixture.queue).await.unwrap());
    assert_eq!(fixture.admin().queue(&fixture.queue).await.unwrap().limits, None);
    let audit: Vec<_> =
        fixture.admin().audit(10).unwrap().into_iter().map(|it| it.action).collect();
    assert!(audit.iter().any(|action| action == "limit"), "{audit:?}");
}

/// Runners do not announce that they serve the framework's queues.
#[tokio::test]
async fn no_runner_is_missed_in_a_queue_of_the_framework() {
    let fixture = Fixture::new().await;
    fixture.admin().put_schedule("report", &nightly("REPORT")).await.unwrap();
    let session = fixture.session(Role::Viewer);
    let schedule_jobs = queue("dq.schedules");
    assert_eq!(session.queue(&schedule_jobs).await.unwrap().runners, None);
    assert_eq!(session.overview().await.unwrap().queues[0].runners, None);

    fixture.clock.advance(2.days());
    let timeline = session.timeline(&schedule_jobs, &key("report")).await.unwrap();
    assert_eq!(timeline.now, Some(WaitReason::Unknown));
}
