//! Stores that fail, hang or are slow, clocks that are set back, and observers that panic.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Clock, DurationExt, ErrorKind, Event, Outcome, Settled, VirtualClock};

use crate::faulty::{Faults, FaultyStore, set_back};
use crate::fixture::{Fixture, Observed, QUEUE, TestHandler};

const LEASE: Duration = Duration::from_secs(6);

/// A fixture whose store has these faults.
async fn faulty(faults: Faults) -> Fixture {
    let clock = Arc::new(VirtualClock::default());
    Fixture::with_backend(FaultyStore::new(&clock, faults), clock).await
}

/// The first calls of `settle` fail.
fn failing_settlements(times: u32, kind: ErrorKind) -> Faults {
    Faults { settlements_fail: Some((times, kind)), ..Faults::default() }
}

/// A handler that never ends.
fn hangs() -> TestHandler {
    TestHandler::new(async |_, _| std::future::pending().await)
}

#[tokio::test]
async fn a_settlement_is_repeated_until_the_store_accepts_it() {
    let mut fixture = faulty(failing_settlements(3, ErrorKind::Unavailable)).await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.wait_for(&Observed::StoreFailed).await;
    fixture.advance_until(100.millis(), &Observed::Settled(Settled::Accepted)).await;
    fixture.stop().await;
    assert_eq!(fixture.stats().await.totals.unwrap().done, 1);
}

#[tokio::test]
async fn a_timeout_is_settled_after_an_outage_of_the_store() {
    let mut fixture = faulty(failing_settlements(1, ErrorKind::Unavailable)).await;
    fixture.schedule("x").await;
    fixture.start(|runner| {
        runner.handler(hangs().with(|settings| {
            settings.timeout = Some(5.seconds());
            settings.max_attempts = Some(1);
        }))
    });
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.advance_until(500.millis(), &Observed::StoreFailed).await;
    fixture.advance_until(100.millis(), &Observed::Settled(Settled::Accepted)).await;
    fixture.stop().await;
    assert_eq!(fixture.stats().await.dead, 1);
}

#[tokio::test]
async fn a_job_whose_handler_is_dropped_at_shutdown_is_released_after_an_outage_of_the_store() {
    let mut fixture = faulty(failing_settlements(1, ErrorKind::Unavailable)).await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.grace(1.seconds()).handler(hangs()));
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.request_stop();
    fixture.advance_until(100.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    assert_eq!(fixture.stats().await.ready, 1);
}

#[tokio::test]
async fn permanently_refused_settlements_do_not_block_others() {
    let mut fixture = faulty(failing_settlements(1, ErrorKind::Internal)).await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.wait_for(&Observed::StoreFailed).await;
    fixture.schedule("y").await;
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    fixture.stop().await;
    let stats = fixture.stats().await;
    assert_eq!(
        (stats.totals.unwrap().done, stats.running),
        (1, 1),
        "the first job runs again when its lease expires"
    );
}

#[tokio::test]
async fn schedule_is_repeated_if_its_outcome_is_unknown() {
    let fixture = faulty(Faults { schedule_results_lost: 2, ..Faults::default() }).await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let id = fixture.dq.new_id();
    let scheduled = queue.schedule("x", "text/plain").after(1.hours()).id(id).await.unwrap();
    assert_eq!(scheduled.id(), id);
    assert_eq!(fixture.stats().await.stored(), 1);
}

#[tokio::test]
async fn a_store_that_hangs_does_not_block_shutdown() {
    let mut fixture = faulty(Faults { claims_hang: true, ..Faults::default() }).await;
    fixture.start(|runner| runner.grace(1.seconds()).handler(TestHandler::done()));
    fixture.request_stop();
    fixture.advance_until(100.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_in_time_is_reported_as_lost() {
    let mut fixture = faulty(Faults { renewals_hang: true, ..Faults::default() }).await;
    fixture.schedule("x").await;
    let handle = TestHandler::new(async |job, _| {
        job.cancelled().await;
        Ok(Outcome::Done)
    });
    fixture.start(|runner| runner.handler(handle.with(|settings| settings.lease = Some(LEASE))));
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.advance_until(250.millis(), &Observed::LeaseLost).await;
    fixture.request_stop();
    fixture.advance_until(250.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
}

#[tokio::test]
async fn a_slow_store_is_called_ahead_of_the_due_time_and_again_if_that_was_too_early() {
    let clock = Arc::new(VirtualClock::default());
    let faults = Faults { claim_ahead: 20.millis(), ..Faults::default() };
    let store = FaultyStore::new(&clock, faults);
    let mut fixture = Fixture::with_backend(store.clone(), clock.clone()).await;
    let due = clock.now() + 500.millis();
    let queue = fixture.dq.queue(QUEUE).unwrap();
    assert!(queue.schedule("1", "application/json").at(due).await.unwrap().is_stored());
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.advance_until(1.millis(), &Observed::Settled(Settled::Accepted)).await;
    fixture.stop().await;
    let claimed_at = store.claim_times.lock().unwrap().clone();
    assert_eq!(claimed_at[..2], [due - 20.millis(), due]);
}

#[tokio::test]
async fn a_slow_claim_is_not_measured_as_clock_skew() {
    let mut fixture = faulty(Faults { claims_take: 200.millis(), ..Faults::default() }).await;
    fixture.schedule("now").await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let later = queue.schedule(r#""later""#, "application/json").after(500.millis());
    assert!(later.await.unwrap().is_stored());
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.wait_settled().await;
    // The claim took 200 ms of the 500: the timer has 300 left.
    fixture.clock.advance(300.millis());
    fixture.wait_settled().await;
    fixture.stop().await;
}

#[tokio::test]
async fn leases_are_renewed_after_the_clock_is_set_back() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| {
        runner.handler(hangs().with(|settings| {
            settings.lease = Some(LEASE);
            settings.timeout = Some(Duration::MAX);
        }))
    });
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    for _ in 0..3 {
        set_back(&fixture.clock, 3_600.seconds());
        // Sleepers of the virtual clock wait for a time of day, which must pass again.
        fixture.clock.advance(3_600.seconds());
        fixture.advance_until(250.millis(), &Observed::Renewed).await;
    }
    fixture.request_stop();
    fixture.advance_until(1.seconds(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
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
    assert_eq!(fixture.stats().await.totals.unwrap().done, 3);
}
