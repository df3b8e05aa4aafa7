//! Clock jumps, as after a suspend: leases expire, and no job runs twice at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::{Backend, Clock, DurationExt, MemoryBackend, Outcome, Settled, VirtualClock};

use crate::runner::faulty::{Faults, FaultyStore};
use crate::runner::fixture::{BlockingHandler, FIRST, Fixture, Observed, Runs, TestHandler};

const LEASE: Duration = Duration::from_secs(30);
/// Renewal interval: a sixth of the lease.
const TICK: Duration = Duration::from_secs(5);

const SECOND: Observed = Observed::Started { attempt: 1, deliveries: 2 };

/// Moves the time of day an hour ahead while no time passes.
fn jump(clock: &VirtualClock) {
    clock.jump(clock.now() + 1.hours());
}

/// Never ends and counts its runs. Sets `signalled` on cancellation.
fn hangs(runs: &Arc<Runs>, signalled: &Arc<AtomicBool>) -> TestHandler {
    let (runs, signalled) = (Arc::clone(runs), Arc::clone(signalled));
    let handler = TestHandler::new(move |job, _| {
        let (running, signalled) = (runs.count(), Arc::clone(&signalled));
        async move {
            let _running = running;
            job.cancelled().await;
            signalled.store(true, Ordering::SeqCst);
            std::future::pending().await
        }
    });
    handler.with(|settings| {
        settings.lease = Some(LEASE);
        settings.timeout = Some(Duration::MAX);
        // So that the runner itself cannot claim the job again.
        settings.concurrency = Some(1);
    })
}

async fn running(
    store: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
    handler: TestHandler,
) -> Fixture {
    let mut fixture = Fixture::with_backend(store, clock).await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.grace(1.seconds()).handler(handler));
    fixture.wait_for(&FIRST).await;
    fixture
}

#[tokio::test]
async fn a_job_that_this_runner_claims_again_ends_its_earlier_run_first() {
    let (runs, signalled) = (Arc::default(), Arc::default());
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(MemoryBackend::new(clock.clone()));
    let handler = hangs(&runs, &signalled).with(|settings| settings.concurrency = Some(2));
    let mut fixture = running(store, clock.clone(), handler).await;
    jump(&clock);
    // The next sweep finds the expired lease.
    let before = fixture.advance_until(100.millis(), &SECOND).await;
    assert_eq!(runs.highest(), 1, "two runs at once");
    assert!(before.contains(&Observed::LeaseLost), "{before:?}");
    fixture.stop_by(100.millis()).await;
}

#[tokio::test]
async fn a_blocking_handler_that_lost_its_lease_delays_the_next_run_until_it_returns() {
    let runs = Arc::new(Runs::default());
    let (handler, results) = BlockingHandler::new(&runs);
    let mut fixture = Fixture::running(handler).await;
    while runs.highest() == 0 {
        tokio::task::yield_now().await;
    }
    jump(&fixture.clock);
    fixture.pass(LEASE * 2).await;
    assert_eq!(runs.highest(), 1, "two runs at once");
    results.send(Ok(Outcome::Done)).unwrap();
    results.send(Ok(Outcome::Done)).unwrap();
    fixture.wait_for(&SECOND).await;
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop().await;
    assert_eq!(fixture.stats().await.totals.unwrap().done, 1);
}

#[tokio::test]
async fn a_suspend_is_noticed_at_the_next_tick_or_the_second_if_the_store_does_not_answer() {
    for (renewals_hang, ticks) in [(false, 1), (true, 2)] {
        let (runs, signalled) = (Arc::default(), Arc::default());
        let clock = Arc::new(VirtualClock::default());
        let store = FaultyStore::new(&clock, Faults { renewals_hang, ..Faults::default() });
        let mut fixture = running(store, clock.clone(), hangs(&runs, &signalled)).await;
        jump(&clock);
        fixture.pass(TICK * ticks).await;
        assert!(signalled.load(Ordering::SeqCst), "the cancellation signal has not fired");
        fixture.stop_by(100.millis()).await;
    }
}

/// The clock jumps during the run, or forward before the claim and back after it.
#[tokio::test]
async fn a_clock_that_jumps_ends_no_lease_of_a_store_with_a_clock_of_its_own() {
    for in_claim in [false, true] {
        let (runs, signalled) = (Arc::default(), Arc::default());
        let [clock, server_clock] = [(); 2].map(|()| Arc::new(VirtualClock::default()));
        let store = Arc::new(MemoryBackend::new(server_clock.clone()));
        let mut fixture = Fixture::with_backend(store, clock.clone()).await;
        fixture.start(|runner| runner.grace(1.seconds()).handler(hangs(&runs, &signalled)));
        fixture.pass(1.seconds()).await;
        if in_claim {
            jump(&clock);
        }
        fixture.schedule("x").await;
        fixture.wait_for(&FIRST).await;
        if in_claim {
            clock.jump(clock.now() - 1.hours());
        } else {
            jump(&clock);
        }
        for _ in 0..60 {
            server_clock.advance(1.seconds());
            fixture.pass(1.seconds()).await;
        }
        assert!(!signalled.load(Ordering::SeqCst), "the lease is held and renewed");
        assert_eq!((fixture.stats().await.running, runs.highest()), (1, 1));
        fixture.stop_by(100.millis()).await;
    }
}

#[tokio::test]
async fn a_job_whose_lease_ended_in_a_suspend_during_the_claim_does_not_start() {
    let clock = Arc::new(VirtualClock::default());
    let faults = Faults { claim_jumps: 1.hours(), ..Faults::default() };
    let mut fixture = Fixture::with_backend(FaultyStore::new(&clock, faults), clock).await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    loop {
        match fixture.next().await {
            FIRST => panic!("started without a lease"),
            Observed::Settled(Settled::LostLease) => break,
            _ => {}
        }
    }
    fixture.stop_by(100.millis()).await;
}

#[tokio::test]
async fn a_job_whose_lease_may_have_ended_during_the_claim_is_handed_back_and_counts_no_loss() {
    let [clock, server_clock] = [(); 2].map(|()| Arc::new(VirtualClock::default()));
    let faults = Faults { claim_jumps: 1.hours(), ..Faults::default() };
    let store = FaultyStore::with_own_clock(&clock, &server_clock, faults);
    let mut fixture = Fixture::with_backend(store, clock).await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.wait_for(&FIRST).await;
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop_by(100.millis()).await;
}
