//! Failing, hanging and slow stores, and panicking observers.

use std::sync::{Arc, Mutex};

use dq_core::config::QueueSettings;
use dq_core::{
    Clock, DeadKind, DeadReason, DurationExt, ErrorKind, Event, Job, JobId, Outcome, QueueName,
    Settled, Timestamp,
};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{
    ACCEPTED, FIRST, Fixture, Observed, QUEUE, TestHandler, finished, settle_down,
};
use crate::runner::log_lines::log_lines;

fn failing_settlements(times: u32, kind: ErrorKind) -> Faults {
    Faults { settlements_fail: Some((times, kind)), ..Faults::default() }
}

#[tokio::test]
async fn a_store_that_needs_a_newer_version_ends_the_runner_with_its_error() {
    let faults = || Faults { is_incompatible: true, ..Faults::default() };
    let mut fixture = Fixture::faulty(faults()).await;
    fixture.run(TestHandler::done());
    assert_eq!(fixture.join().await.unwrap_err().kind(), ErrorKind::Incompatible);

    // A shutdown at the same time does not hide it.
    let fixture = Fixture::faulty(faults()).await;
    let runner = fixture.dq.runner().without_linked_handlers().handler(TestHandler::done());
    let shutdown = async {
        while fixture.store.calls("claim") == 0 {
            tokio::task::yield_now().await;
        }
    };
    let ended = runner.run_until(shutdown).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Incompatible);
}

#[tokio::test]
async fn a_settlement_is_repeated_until_the_store_accepts_it() {
    let times_out = QueueSettings::new().timeout(5.seconds()).max_attempts(1);
    for (failures, handler, is_stopped, counts) in [
        (3, TestHandler::done(), false, (1, 0, 0)),
        (1, TestHandler::hangs().with(times_out), false, (0, 1, 0)),
        (1, TestHandler::hangs(), true, (0, 0, 1)),
    ] {
        let faults = failing_settlements(failures, ErrorKind::Unavailable);
        let mut fixture = Fixture::faulty(faults).await;
        fixture.schedule("x").await;
        fixture.start(|runner| runner.grace(1.seconds()).handler(handler));
        fixture.wait_for(&FIRST).await;
        if is_stopped {
            fixture.stop_by(100.millis()).await;
        } else {
            fixture.advance_until(500.millis(), &Observed::StoreFailed).await;
            fixture.advance_until(100.millis(), &ACCEPTED).await;
            fixture.stop().await;
        }
        let stats = fixture.stats().await;
        assert_eq!((stats.totals.unwrap().done, stats.dead, stats.ready), counts);
    }
}

#[tokio::test]
async fn a_settlement_without_an_answer_is_reported_and_repeated() {
    let faults = Faults { settlements_unanswered: 1, ..Faults::default() };
    let mut fixture = Fixture::faulty_running(faults, TestHandler::done()).await;
    fixture.wait_for(&finished("Done")).await;
    fixture.advance_until(1.seconds(), &Observed::StoreFailed).await;
    // The call took effect, so the repeated one finds no lease.
    fixture.advance_until(100.millis(), &Observed::SettledBefore(Settled::LostLease)).await;
    fixture.stop().await;
    assert_eq!(fixture.done().await, 1);
    let text = log_lines();
    assert!(text.contains("settle: outcome unknown"), "{text}");
    assert!(!text.contains("lease was lost"), "the job was not lost: {text}");
}

#[tokio::test]
async fn a_job_that_is_scheduled_while_a_listener_is_subscribed_does_not_wait_for_the_sweep() {
    let mut fixture =
        Fixture::faulty(Faults { listen_takes: 3.seconds(), ..Faults::default() }).await;
    let start = fixture.clock.now();
    fixture.start(|runner| runner.sweep(1.minutes()).handler(TestHandler::done()));
    fixture.pass(2.seconds()).await;
    fixture.schedule("x").await;
    fixture.advance_until(100.millis(), &ACCEPTED).await;
    let waited = fixture.clock.now().since(start);
    assert!(waited < 30.seconds(), "{waited:?}");
    fixture.stop().await;
}

#[tokio::test]
async fn failed_subscriptions_are_repeated_before_the_next_sweep_and_logged_once() {
    let mut fixture = Fixture::faulty(Faults { listen_fails: true, ..Faults::default() }).await;
    fixture.start(|runner| runner.sweep(1.minutes()).handler(TestHandler::done()));
    fixture.pass(2.seconds()).await;
    // The failed claim renews the subscription.
    fixture.store.change(|faults| faults.is_away = true);
    fixture.pass(61.seconds()).await;
    fixture.store.change(|faults| faults.is_away = false);
    fixture.pass(11.seconds()).await;
    fixture.store.change(|faults| faults.listen_fails = false);
    fixture.pass(6.seconds()).await;
    let start = fixture.clock.now();
    fixture.schedule("x").await;
    fixture.advance_until(100.millis(), &ACCEPTED).await;
    let waited = fixture.clock.now().since(start);
    assert!(waited < 10.seconds(), "{waited:?}");
    let text = log_lines();
    for line in ["no wake-up hints", "sends wake-up hints again"] {
        assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
    }
    fixture.stop().await;
}

#[tokio::test]
async fn the_error_of_a_loop_that_panics_names_the_loop() {
    for (panics_in, name) in [("claim", "claim"), ("stats", "maintain")] {
        let mut fixture = Fixture::faulty(Faults { panics_in, ..Faults::default() }).await;
        fixture.run(TestHandler::done());
        let error = fixture.join().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        let wanted = format!("the runner's {name} loop has panicked");
        assert!(error.message().starts_with(&wanted), "{error}");
    }
}

#[tokio::test]
async fn a_refused_settlement_does_not_block_later_ones_or_the_others_of_its_call() {
    let faults = failing_settlements(1, ErrorKind::Internal);
    let mut fixture = Fixture::faulty_running(faults, TestHandler::done()).await;
    fixture.wait_for(&Observed::StoreFailed).await;
    fixture.schedule("y").await;
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    fixture.stop().await;
    assert_eq!((fixture.done().await, fixture.stats().await.running), (1, 1));

    let mut fixture = Fixture::faulty(Faults { refuses_skips: true, ..Faults::default() }).await;
    for payload in ["x", "skip", "y"] {
        fixture.schedule(payload).await;
    }
    // They end together, so that one call settles them.
    fixture.run(TestHandler::new(async |job, payload| {
        job.sleep(1.seconds()).await;
        Ok(if payload == "skip" { Outcome::skip("refused") } else { Outcome::Done })
    }));
    for _ in 0..2 {
        let accepted = Observed::SettledBefore(Settled::Accepted);
        fixture.advance_until(100.millis(), &accepted).await;
    }
    fixture.stop().await;
    assert_eq!((fixture.done().await, fixture.stats().await.running), (2, 1));
}

#[tokio::test]
async fn a_next_step_is_a_failure_on_a_store_that_has_none_and_other_jobs_are_settled() {
    let mut fixture = Fixture::faulty(Faults { lacks_again: true, ..Faults::default() }).await;
    for payload in ["x", "again"] {
        fixture.schedule(payload).await;
    }
    let handler = TestHandler::new(async |_, payload| {
        Ok(if payload == "again" { Outcome::again(1.hours(), &"next")? } else { Outcome::Done })
    });
    fixture.run(handler.with(QueueSettings::new().max_attempts(1)));
    for _ in 0..2 {
        assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    }
    fixture.stop().await;
    let (_, _, message) = fixture.dead_job().await;
    assert!(message.contains("faulty backend does not support next steps"), "{message}");
    assert_eq!(fixture.done().await, 1);
}

#[tokio::test]
async fn a_slow_store_is_called_ahead_of_the_due_time_and_again_if_that_was_too_early() {
    let mut fixture =
        Fixture::faulty(Faults { claim_ahead: 20.millis(), ..Faults::default() }).await;
    let due = fixture.clock.now() + 500.millis();
    assert!(fixture.queue().schedule("1", "application/json").at(due).await.unwrap().is_stored());
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.advance_until(1.millis(), &ACCEPTED).await;
    fixture.stop().await;
    let claimed_at = fixture.store.claim_times.lock().unwrap().clone();
    assert_eq!(claimed_at[..2], [due - 20.millis(), due]);
}

#[tokio::test]
async fn a_due_job_that_no_claim_returns_is_claimed_less_and_less_often() {
    let mut fixture = Fixture::faulty(Faults { reports_ghost: true, ..Faults::default() }).await;
    fixture.run(TestHandler::done());
    for _ in 0..10_000 {
        fixture.clock.advance(1.millis());
        tokio::task::yield_now().await;
    }
    let claims = fixture.store.calls("claim");
    // Ten while the delay doubles up to the sweep interval of 1 s; then two a second for 9 s.
    assert!(claims < 40, "{claims} claims in ten seconds");
    let warnings = log_lines().matches("no claim returns it").count();
    assert_eq!(warnings, 1, "{}", log_lines());

    fixture.schedule("x").await;
    fixture.wait_settled().await;
    let before = fixture.store.calls("claim");
    fixture.clock.advance(2.millis());
    settle_down().await;
    assert!(fixture.store.calls("claim") > before, "claims are frequent again");
    fixture.stop_by(100.millis()).await;
}

#[tokio::test]
async fn a_job_that_the_store_has_quarantined_is_reported_as_dead() {
    let queue = QueueName::new(QUEUE).unwrap();
    let ids = [7, 8].map(|byte| JobId::from_bytes([byte; 16]));
    let reason = DeadReason::new(DeadKind::Quarantined, "its headers are no JSON");
    let job = |id| Job::new(id, queue.clone(), Timestamp::EPOCH, Timestamp::EPOCH, "x".into());
    let quarantined = ids.map(|id| (job(id), reason.clone()));
    let faults = || Faults { quarantined: quarantined.to_vec(), ..Faults::default() };

    let mut fixture = Fixture::faulty(faults()).await;
    fixture.run(TestHandler::done());
    for _ in ids {
        fixture.wait_for(&Observed::Dead(DeadKind::Quarantined)).await;
    }
    fixture.stop().await;
    let text = log_lines();
    assert!(text.contains(&ids[0].to_string()) && text.contains(&reason.message), "{text}");

    let fixture = Fixture::faulty(faults()).await;
    let dead = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&dead);
    let runner = fixture.dq.runner().without_linked_handlers().handler(TestHandler::done());
    let runner = runner.observer(move |event: &Event<'_>| {
        if let Event::Dead { job, .. } = event {
            seen.lock().unwrap().push(job.id);
        }
    });
    runner.build().unwrap().run_due().await.unwrap();
    assert_eq!(*dead.lock().unwrap(), ids);
}

#[tokio::test]
async fn a_finding_of_the_store_is_reported_once() {
    let mut fixture = Fixture::faulty(Faults { has_finding: true, ..Faults::default() }).await;
    fixture.run(TestHandler::done());
    let finding = Observed::Finding("faulty.finding");
    fixture.wait_for(&finding).await;
    fixture.pass(30.minutes()).await;
    fixture.request_stop();
    let later = fixture.advance_until(100.millis(), &Observed::Stopped).await;
    assert!(!later.contains(&finding));
    assert_eq!(log_lines().matches("faulty.finding").count(), 1, "{}", log_lines());
}

#[tokio::test]
async fn a_slow_claim_is_not_measured_as_clock_skew() {
    let mut fixture =
        Fixture::faulty(Faults { claims_take: 200.millis(), ..Faults::default() }).await;
    fixture.schedule("now").await;
    let later = fixture.queue().schedule(r#""later""#, "application/json").after(500.millis());
    assert!(later.await.unwrap().is_stored());
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.wait_settled().await;
    // The claim took 200 ms of the 500: the timer has 300 left.
    fixture.clock.advance(300.millis());
    fixture.wait_settled().await;
    fixture.stop().await;
}

#[tokio::test]
async fn a_panicking_observer_does_not_stop_the_runner() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| {
        runner.handler(TestHandler::done()).observer(|_: &Event<'_>| panic!("a bug in the metrics"))
    });
    for _ in 0..3 {
        fixture.schedule("x").await;
        fixture.wait_settled().await;
    }
    fixture.stop().await;
    assert_eq!(fixture.done().await, 3);
}

#[tokio::test]
async fn a_store_that_never_answers_listeners_still_runs_jobs_and_is_reported() {
    let faults = Faults { listen_hangs: true, ..Faults::default() };
    let mut fixture = Fixture::faulty_running(faults, TestHandler::done()).await;
    fixture.advance_until(100.millis(), &ACCEPTED).await;
    fixture.advance_until(1.seconds(), &Observed::StoreFailed).await;
    let text = log_lines();
    assert!(text.contains("no wake-up hints") && text.contains("listen"), "{text}");
    fixture.stop_by(1.seconds()).await;
}

#[tokio::test]
async fn a_store_that_hangs_does_not_block_shutdown() {
    let mut fixture = Fixture::faulty(Faults { claims_hang: true, ..Faults::default() }).await;
    fixture.start(|runner| runner.grace(1.seconds()).handler(TestHandler::done()));
    fixture.stop_by(100.millis()).await;
}
