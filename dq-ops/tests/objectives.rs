use dq_core::config::QueueSettings;
use dq_core::{Due, DurationExt, LatenessCause};
use dq_ops::ObjectiveView;
use serde_json::{Value, json};

use crate::fixture::{Fixture, serves_mail};

/// The histogram bucket of a run time of about two seconds.
const TWO_SECONDS: u64 = 39;

async fn with_objective() -> Fixture {
    let mut settings = QueueSettings::new();
    settings.lateness = Some("99% < 100ms".parse().unwrap());
    Fixture::with_defaults(settings).await
}

impl Fixture {
    async fn objective(&self) -> ObjectiveView {
        let of_queue = self.admin().queue(&self.queue).await.unwrap().objective.unwrap();
        let overview = self.admin().overview().await.unwrap();
        assert_eq!(overview.queues[0].objective.as_ref(), Some(&of_queue));
        of_queue
    }

    async fn codes(&self) -> Vec<String> {
        self.admin().check().await.into_iter().map(|finding| finding.code).collect()
    }
}

#[tokio::test]
async fn an_objective_is_missed_without_a_runner() {
    let fixture = with_objective().await;
    fixture.schedule_in(&fixture.queue, Due::NOW).await;
    fixture.schedule_in(&fixture.queue, Due::After(1.hours())).await;
    fixture.clock.advance(99.millis());
    let objective = fixture.objective().await;
    assert_eq!((objective.missed, objective.waiting), (false, 0));
    assert_eq!(fixture.codes().await, ["queues.no-runner"], "not late yet");

    fixture.clock.advance(1.millis());
    let objective = fixture.objective().await;
    assert_eq!((objective.missed, objective.waiting), (true, 1));
    assert_eq!(objective.cause, Some(LatenessCause::NoRunner));
    assert_eq!(fixture.codes().await, ["lateness.objective"], "which tells of the runner, too");
}

#[tokio::test]
async fn due_jobs_that_no_runner_serves_are_a_finding() {
    let fixture = Fixture::new().await;
    let (admin, mail) = (fixture.admin(), &fixture.queue);
    fixture.schedule_in(mail, Due::After(1.minutes())).await;
    assert_eq!(admin.check().await, [], "nothing is due");

    fixture.clock.advance(1.minutes());
    fixture.schedule_in(mail, Due::NOW).await;
    let finding = fixture.only_finding().await;
    assert_eq!((&*finding.severity, &*finding.code), ("warning", "queues.no-runner"));
    assert_eq!(finding.cause, "no runner serves queues with due jobs: MAIL (2)");
    assert!(finding.remedy.starts_with("start a program whose runner handles them"));

    admin.pause(mail).await.unwrap();
    assert_eq!(admin.check().await, [], "they are to wait");
    admin.resume(mail).await.unwrap();
    fixture.announce("web-1", json!({"queues": [serves_mail(4, 0)]})).await;
    assert_eq!(admin.check().await, [], "a runner serves the queue");
    assert_eq!(admin.queue(mail).await.unwrap().objective, None);
}

#[tokio::test]
async fn the_cause_follows_from_what_the_runners_announce() {
    let busy = |run_time: Value| {
        let mut queue = serves_mail(4, 4);
        queue["run_time"] = run_time;
        json!({"running": 4, "skew_ms": 0, "claim_ms": 1, "queues": [queue]})
    };
    let idle = |skew_ms: i64, claim_ms: u64| json!({"skew_ms": skew_ms, "claim_ms": claim_ms, "queues": [serves_mail(4, 0)]});
    // Run times are pairs of a histogram bucket and a count. Bucket 1 is up to 1 ms.
    for (runner, cause) in [
        (idle(0, 1), None),
        (idle(0, 100), Some(LatenessCause::StoreSlow)),
        (idle(-100, 1), Some(LatenessCause::ClockSkew)),
        (busy(json!([1, 4])), Some(LatenessCause::SlotsFull)),
        (busy(json!([TWO_SECONDS, 4])), Some(LatenessCause::HandlersSlow)),
        (busy(json!([])), Some(LatenessCause::HandlersSlow)),
    ] {
        let fixture = with_objective().await;
        fixture.schedule_in(&fixture.queue, Due::NOW).await;
        fixture.clock.advance(1.seconds());
        fixture.announce("web-1", runner).await;
        assert_eq!(fixture.objective().await.cause, cause);
        let finding = fixture.only_finding().await;
        let text = cause.map_or("the cause was not observed".to_owned(), |it| it.to_string());
        assert!(finding.cause.contains(&text), "{}", finding.cause);

        fixture.admin().pause(&fixture.queue).await.unwrap();
        assert_eq!(fixture.objective().await.cause, Some(LatenessCause::Paused));
    }
}

fn counted(objective: &str, in_time: u64, late: u64, cause: &str) -> Value {
    let mut queue = serves_mail(4, 0);
    queue["objective"] =
        json!({"objective": objective, "in_time": in_time, "late": late, "cause": cause});
    json!({"queues": [queue]})
}

#[tokio::test]
async fn starts_of_all_runners_with_one_objective_add_up() {
    let fixture = with_objective().await;
    fixture.announce("web-1", counted("90% < 1s", 50, 5, "slots_full")).await;
    fixture.announce("web-2", counted("90% < 1s", 40, 5, "store_slow")).await;
    fixture.announce("web-3", json!({"queues": [serves_mail(4, 0)]})).await;
    let theirs = fixture.objective().await;
    assert_eq!(theirs.objective, "90% < 1s", "no runner has the configured one");
    assert_eq!((theirs.in_time, theirs.late, theirs.missed), (90, 10, false));

    fixture.announce("web-2", counted("90% < 1s", 40, 6, "store_slow")).await;
    let theirs = fixture.objective().await;
    let cause = Some(LatenessCause::StoreSlow);
    assert_eq!((theirs.late, theirs.missed, theirs.cause), (11, true, cause));

    fixture.announce("web-3", counted("99% < 100ms", 3, 0, "slots_full")).await;
    let configured = fixture.objective().await;
    assert_eq!((configured.in_time, configured.late, configured.missed), (3, 0, false));
}
