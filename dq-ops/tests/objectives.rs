//! Lateness objectives in the overview, on a queue and in the check.

use std::sync::Arc;

use dq_core::config::QueueSettings;
use dq_core::{
    Announcement, Backend, Clock, Dq, Due, DurationExt, LatenessCause, MemoryBackend, QueueName,
    VirtualClock,
};
use dq_ops::{Actor, ObjectiveView, Ops, Role, ScheduleRequest, Session};

struct Fixture {
    clock: Arc<VirtualClock>,
    session: Session,
    queue: QueueName,
}

impl Fixture {
    async fn new(objective: Option<&str>) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let store = Arc::new(MemoryBackend::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let builder = Dq::builder().backend(store).clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let mut settings = QueueSettings::new();
        settings.lateness = objective.map(|objective| objective.parse().unwrap());
        let dq = builder.defaults(settings).connect().await.unwrap();
        let session = Ops::new(dq).session(Actor::new("ann", Role::Admin));
        Self { clock, session, queue: QueueName::new("MAIL").unwrap() }
    }

    async fn schedule(&self, due: Due) {
        let mut request = ScheduleRequest::new("1");
        request.due = due;
        self.session.schedule(&self.queue, request).await.unwrap();
    }

    /// `served` has queue fields, `info` runner fields.
    async fn announce(&self, name: &str, served: &str, info: &str) {
        let json = format!(
            r#"{{"format":1,"host":"h","pid":1,"version":"0.1.0","started":0,"stopping":false,
            "concurrency":16,"omitted_queues":0,{info},"queues":[{{"queue":"MAIL","concurrency":4,
            "lateness":[],{served}}}]}}"#
        );
        let announcement = Announcement::new(name, json, 1.hours());
        Backend::announce(&**self.session.ops().dq().backend(), announcement).await.unwrap();
    }

    async fn view(&self) -> ObjectiveView {
        let of_queue = self.session.queue(&self.queue).await.unwrap().objective.unwrap();
        let overview = self.session.overview().await.unwrap();
        assert_eq!(overview.queues[0].objective.as_ref(), Some(&of_queue));
        let text = serde_json::to_string(&overview).unwrap();
        assert_eq!(serde_json::from_str::<dq_ops::Overview>(&text).unwrap(), overview);
        of_queue
    }

    /// Returns the only finding's cause and remedy.
    async fn finding(&self) -> (String, String) {
        let mut findings = self.session.check().await;
        assert_eq!(findings.len(), 1, "{findings:?}");
        let finding = findings.remove(0);
        assert_eq!(
            (finding.severity.as_str(), finding.code.as_str()),
            ("warning", "lateness.objective")
        );
        (finding.cause, finding.remedy)
    }
}

impl Fixture {
    async fn codes(&self) -> Vec<String> {
        self.session.check().await.into_iter().map(|finding| finding.code).collect()
    }
}

const IDLE: &str = r#""running":0,"skew_ms":0,"claim_ms":1"#;
const NO_RUNS: &str = r#""running":0,"run_time":[]"#;

#[tokio::test]
async fn an_objective_is_missed_without_a_runner() {
    let fixture = Fixture::new(Some("99% < 100ms")).await;
    fixture.schedule(Due::NOW).await;
    fixture.schedule(Due::After(1.hours())).await;
    fixture.clock.advance(99.millis());
    let view = fixture.view().await;
    assert!(!view.missed && view.waiting == 0, "{view:?}");
    assert_eq!(fixture.codes().await, ["queues.no-runner"], "not late yet");
    fixture.clock.advance(1.millis());
    let view = fixture.view().await;
    assert_eq!((view.missed, view.waiting), (true, 1));
    assert_eq!(
        (view.objective.as_str(), view.cause),
        ("99% < 100ms", Some(LatenessCause::NoRunner))
    );
    let (cause, remedy) = fixture.finding().await;
    assert_eq!(
        cause,
        "jobs of queue MAIL are late: no runner serves the queue; the objective is 99% < 100ms; of 0 \
         starts in the last hour 0 were late, and 1 late jobs wait"
    );
    assert!(remedy.starts_with("start a program that handles the queue"), "{remedy}");
}

#[tokio::test]
async fn queues_without_an_objective_have_none() {
    let fixture = Fixture::new(None).await;
    fixture.schedule(Due::NOW).await;
    fixture.clock.advance(1.hours());
    assert_eq!(fixture.session.queue(&fixture.queue).await.unwrap().objective, None);
    fixture.announce("web-1", NO_RUNS, IDLE).await;
    assert_eq!(fixture.session.check().await, []);
}

#[tokio::test]
async fn due_jobs_that_no_runner_serves_are_a_finding() {
    let fixture = Fixture::new(None).await;
    fixture.schedule(Due::After(1.minutes())).await;
    assert_eq!(fixture.session.check().await, [], "nothing is due");
    fixture.clock.advance(1.minutes());
    fixture.schedule(Due::NOW).await;
    let findings = fixture.session.check().await;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((&*finding.severity, &*finding.code), ("warning", "queues.no-runner"));
    assert_eq!(finding.cause, "no runner serves queues with due jobs: MAIL (2)");
    assert!(finding.remedy.starts_with("start a program whose runner handles them"));

    fixture.session.pause(&fixture.queue).await.unwrap();
    assert_eq!(fixture.session.check().await, [], "they are to wait");
    fixture.session.resume(&fixture.queue).await.unwrap();
    fixture.announce("web-1", NO_RUNS, IDLE).await;
    assert_eq!(fixture.session.check().await, [], "a runner serves the queue");
}

#[tokio::test]
async fn the_cause_follows_from_what_the_runners_announce() {
    // Run times are pairs of bucket and count. Bucket 1 is up to 1 ms.
    let full = r#""running":4,"run_time":[1,4]"#;
    let hanging = r#""running":4,"run_time":[]"#;
    // Four runs of about two seconds, in four slots.
    let slow = r#""running":4,"run_time":[39,4]"#;
    for (served, info, cause) in [
        (NO_RUNS, IDLE, None),
        (full, IDLE, Some(LatenessCause::SlotsFull)),
        (slow, IDLE, Some(LatenessCause::HandlersSlow)),
        (hanging, IDLE, Some(LatenessCause::HandlersSlow)),
        (NO_RUNS, r#""running":0,"skew_ms":0,"claim_ms":100"#, Some(LatenessCause::StoreSlow)),
        (NO_RUNS, r#""running":0,"skew_ms":-100"#, Some(LatenessCause::ClockSkew)),
    ] {
        let fixture = Fixture::new(Some("99% < 100ms")).await;
        fixture.schedule(Due::NOW).await;
        fixture.clock.advance(1.seconds());
        fixture.announce("web-1", served, info).await;
        assert_eq!(fixture.view().await.cause, cause);
        let (text, _) = fixture.finding().await;
        let expected = cause.map_or("the cause was not observed".to_owned(), |it| it.to_string());
        assert!(text.contains(&expected), "{text}");
        fixture.session.pause(&fixture.queue).await.unwrap();
        assert_eq!(fixture.view().await.cause, Some(LatenessCause::Paused));
    }
}

#[tokio::test]
async fn starts_of_all_runners_add_up() {
    let objective = |in_time, late, cause| {
        format!(
            r#"{NO_RUNS},"objective":{{"objective":"90% < 1s","in_time":{in_time},"late":{late},
            "cause":"{cause}"}}"#
        )
    };
    // Only the runner has an objective.
    let fixture = Fixture::new(None).await;
    fixture.announce("web-1", &objective(50, 5, "slots_full"), IDLE).await;
    fixture.announce("web-2", &objective(40, 5, "store_slow"), IDLE).await;
    fixture.announce("web-3", NO_RUNS, IDLE).await;
    let view = fixture.view().await;
    assert_eq!((view.in_time, view.late, view.missed), (90, 10, false));
    fixture.announce("web-2", &objective(40, 6, "store_slow"), IDLE).await;
    let view = fixture.view().await;
    assert_eq!((view.late, view.missed, view.cause), (11, true, Some(LatenessCause::StoreSlow)));

    // All runners use another objective than the configuration.
    let fixture = Fixture::new(Some("99% < 100ms")).await;
    fixture.announce("web-1", &objective(50, 50, "slots_full"), IDLE).await;
    let view = fixture.view().await;
    assert_eq!((view.in_time, view.late, view.missed), (50, 50, true));
    assert_eq!(view.objective, "90% < 1s");
    // Counts for another objective are ignored.
    let own = objective(3, 0, "slots_full").replace("90% < 1s", "99% < 100ms");
    fixture.announce("web-2", &own, IDLE).await;
    let view = fixture.view().await;
    assert_eq!((view.in_time, view.late, view.missed), (3, 0, false));
}
