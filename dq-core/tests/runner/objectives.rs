//! Lateness objectives: missed, met again, and the named cause.

use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Announcement, Backend, DurationExt, LatenessCause};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{Fixture, Observed, QUEUE, TestHandler};

fn handler(takes: Duration) -> TestHandler {
    let settings = QueueSettings::new().lateness("90% < 1s".parse().unwrap());
    TestHandler::takes(takes).with(settings).one_at_once()
}

async fn notified(fixture: &mut Fixture, time: Duration) -> Vec<Observed> {
    fixture.pass(time).await;
    let of_objective = |observed: &Observed| {
        matches!(observed, Observed::LatenessMissed(_) | Observed::LatenessRecovered)
    };
    fixture.observed().into_iter().filter(of_objective).collect()
}

const fn missed(cause: LatenessCause) -> Observed {
    Observed::LatenessMissed(Some(cause))
}

#[tokio::test]
async fn slow_handlers_are_named_once_and_the_recovery_once() {
    let mut fixture = Fixture::new().await;
    fixture.run(handler(3.seconds()));
    fixture.pass(1.seconds()).await;
    fixture.schedule("1").await;
    fixture.schedule("2").await;
    let slow = LatenessCause::HandlersSlow;
    assert_eq!(notified(&mut fixture, 40.seconds()).await, [missed(slow)]);
    let announced = fixture.dq.runners().await.unwrap().remove(0).info.unwrap();
    let counts = announced.queues[0].objective.unwrap();
    assert_eq!((counts.in_time, counts.late), (1, 1));
    assert_eq!(announced.claim_ms, Some(0));
    let status = fixture.dq.lateness().await.unwrap().remove(0);
    assert!(status.is_missed() && status.waiting == 0, "{status}");
    assert_eq!(status.cause, Some(slow));

    for _ in 0..9 {
        fixture.schedule("in time").await;
        fixture.pass(4.seconds()).await;
    }
    assert_eq!(notified(&mut fixture, 15.seconds()).await, [Observed::LatenessRecovered]);
    assert_eq!(notified(&mut fixture, 60.seconds()).await, []);
    fixture.stop().await;
}

#[tokio::test]
async fn jobs_of_a_paused_queue_are_late_while_they_wait() {
    let mut fixture = Fixture::new().await;
    fixture.run(handler(1.millis()));
    fixture.queue().pause().await.unwrap();
    fixture.schedule("x").await;
    let paused = LatenessCause::Paused;
    assert_eq!(notified(&mut fixture, 60.seconds()).await, [missed(paused)]);
    let status = fixture.dq.lateness().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.cause), (1, Some(paused)));
    fixture.queue().purge().await.unwrap();
    assert_eq!(notified(&mut fixture, 20.seconds()).await, [Observed::LatenessRecovered]);
    fixture.stop().await;
}

#[tokio::test]
async fn a_store_that_was_away_is_named_when_it_is_back() {
    let mut fixture = Fixture::new().await;
    fixture.run(handler(100.millis()));
    fixture.pass(1.seconds()).await;
    for _ in 0..10 {
        fixture.schedule("x").await;
    }
    fixture.store.change(|faults| faults.is_away = true);
    assert_eq!(notified(&mut fixture, 40.seconds()).await, [], "nothing is known");
    fixture.store.change(|faults| faults.is_away = false);
    let slow = LatenessCause::StoreSlow;
    assert_eq!(notified(&mut fixture, 30.seconds()).await, [missed(slow)]);
    let status = fixture.dq.lateness().await.unwrap().remove(0);
    assert_eq!((status.counts.late, status.cause), (10, Some(slow)));
    fixture.stop().await;
}

#[tokio::test]
async fn the_limit_that_holds_jobs_back_is_named() {
    let limited = || QueueSettings::new().lateness("90% < 1s".parse().unwrap());
    for (settings, cause) in [
        (limited().rate("1/1s".parse().unwrap()), LatenessCause::Rate),
        (limited().max_running(2), LatenessCause::MaxRunning),
        (limited().group_max_running(1), LatenessCause::GroupFull),
    ] {
        let mut fixture = Fixture::new().await;
        for number in 0..100 {
            let payload = serde_json::to_vec(&number.to_string()).unwrap();
            let job = fixture.queue().schedule(payload, "application/json").group("tenant-1");
            assert!(job.await.unwrap().is_stored());
        }
        fixture.run(TestHandler::takes(1.seconds()).with(settings.concurrency(100)));
        assert_eq!(notified(&mut fixture, 20.seconds()).await, [missed(cause)]);
        let status = fixture.dq.lateness().await.unwrap().remove(0);
        assert!(status.waiting > 0 && status.counts.late > 0, "{status}");
        assert_eq!((status.cause, status.counts.cause), (Some(cause), Some(cause)));
        fixture.stop_by(1.seconds()).await;
    }
}

struct Late {
    run_takes: Duration,
    claim_takes: Duration,
    /// Time from scheduling the jobs to the runner's start.
    before_start: Duration,
    other_runner: bool,
    cause: Option<LatenessCause>,
}

#[tokio::test]
async fn the_cause_of_late_starts_is_named() {
    let late = || Late {
        run_takes: 3.seconds(),
        claim_takes: Duration::ZERO,
        before_start: Duration::ZERO,
        other_runner: false,
        cause: None,
    };
    let (full, slow) = (LatenessCause::SlotsFull, LatenessCause::StoreSlow);
    for late in [
        Late { run_takes: 900.millis(), cause: Some(full), ..late() },
        Late { run_takes: 1.millis(), claim_takes: 2.seconds(), cause: Some(slow), ..late() },
        Late { before_start: 10.minutes(), cause: Some(LatenessCause::NoRunner), ..late() },
        Late { before_start: 10.minutes(), other_runner: true, ..late() },
    ] {
        let faults = Faults { calls_take: late.claim_takes, ..Faults::default() };
        let mut fixture = Fixture::faulty(faults).await;
        if late.other_runner {
            let announcement = Announcement::new("first", info_of_other_runner(), 1.hours());
            Backend::announce(&**fixture.dq.backend(), announcement).await.unwrap();
        }
        let jobs = if late.other_runner { 1 } else { 4 };
        for _ in 0..jobs {
            fixture.schedule("x").await;
        }
        fixture.clock.advance(late.before_start);
        fixture.run(handler(late.run_takes));
        let events = notified(&mut fixture, 20.seconds()).await;
        assert_eq!(events, [Observed::LatenessMissed(late.cause)]);
        fixture.stop_by(500.millis()).await;
    }
}

fn info_of_other_runner() -> String {
    format!(
        r#"{{"format":1,"host":"h","pid":1,"version":"0.1.0","started":0,"stopping":false,
        "concurrency":1,"running":1,"skew_ms":null,"omitted_queues":0,"queues":[{{"queue":"{QUEUE}",
        "concurrency":1,"running":1,"lateness":[],"run_time":[]}}]}}"#
    )
}
