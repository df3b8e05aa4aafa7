//! Timelines and wait reasons.

use dq_core::{Backend, DeadKind, DeadReason, Due, DurationExt, JobId, Target, Verdict};
use dq_ops::{EventKind, OpsError, Role, WaitReason};

use crate::ops::fixture::{Fixture, key};

#[tokio::test]
async fn each_error_stands_beside_the_attempt_that_it_ended() {
    let fixture = Fixture::new().await;
    // A job that failed twice and then died.
    let died = async |kind, error: &str| {
        let id = fixture.schedule("order", "1", Due::NOW).await;
        for error in ["error 1", "error 2"] {
            let job = fixture.claim().await.remove(0);
            fixture.settle(&job, Verdict::retry(Due::NOW, error)).await;
        }
        let job = fixture.claim().await.remove(0);
        fixture.settle(&job, Verdict::dead(DeadReason::new(kind, error))).await;
        shown(&fixture, id).await
    };
    let failed = || "failed, attempt 2: error 2".to_owned();

    let (id, events) = died(DeadKind::Exhausted, "error 3").await;
    assert_eq!(events, [failed(), "dead, attempt 3: error 3".to_owned()]);
    fixture.admin().remove(&fixture.queue, &Target::Id(id)).await.unwrap();
    assert_eq!(shown(&fixture, id).await.1, [failed()], "of a removed job");
    let (_, events) = died(DeadKind::Rejected, "no").await;
    assert_eq!(events, [failed(), "dead, attempt 3: no".to_owned()]);
    // These deaths are not attempts.
    for kind in [DeadKind::Lost, DeadKind::Late, DeadKind::Undecodable] {
        let (id, events) = died(kind, "why").await;
        assert_eq!(events, [failed(), "dead: why".to_owned()], "{kind:?}");
        fixture.admin().remove(&fixture.queue, &Target::Id(id)).await.unwrap();
        assert_eq!(shown(&fixture, id).await.1, [failed()], "removed, {kind:?}");
    }
    let (id, _) = died(DeadKind::Exhausted, "error 3").await;
    fixture.admin().replay(&fixture.queue, &Target::Id(id)).await.unwrap();
    assert!(shown(&fixture, id).await.1.is_empty(), "a replayed job begins anew");
    let job = fixture.claim().await.remove(0);
    fixture.settle(&job, Verdict::retry(Due::NOW, "error 4")).await;
    assert_eq!(shown(&fixture, id).await.1, ["failed, attempt 1: error 4"]);
}

/// The errors in a job's timeline, with their attempts.
async fn shown(fixture: &Fixture, id: JobId) -> (JobId, Vec<String>) {
    let timeline = fixture.admin().timeline(&fixture.queue, &Target::Id(id)).await.unwrap();
    let errors = timeline.events.into_iter().filter_map(|event| match event.kind {
        EventKind::Failed { error, attempt } => Some(format!("failed, attempt {attempt}: {error}")),
        EventKind::Dead { reason, attempt } => Some(match attempt {
            Some(attempt) => format!("dead, attempt {attempt}: {reason}"),
            None => format!("dead: {reason}"),
        }),
        _ => None,
    });
    (id, errors.collect())
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
    // This runner may serve the queue without announcing it.
    assert_eq!(announce(2, 1).await.0, WaitReason::Unknown);
    assert_eq!(announce(1, 0).await.0, WaitReason::Claimable);
    fixture.admin().pause(&fixture.queue).await.unwrap();
    assert_eq!(announce(1, 0).await.0, WaitReason::Paused);
    let queue = fixture.admin().queue(&fixture.queue).await.unwrap();
    assert_eq!(queue.lateness.unwrap().p99_ms, 2);
    assert_eq!((queue.runners, queue.free_slots), (Some(1), Some(1)));
}
