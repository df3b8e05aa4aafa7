//! Clock jumps, as after a suspend: leases expire, and no job runs twice at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Clock, DurationExt, Outcome, Settled, VirtualClock};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{FIRST, Fixture, Observed, Runs, TestHandler};

const LEASE: Duration = Duration::from_secs(30);
/// The renewal interval: a sixth of the lease.
const RENEWAL: Duration = Duration::from_secs(5);

const SECOND: Observed = Observed::Started { attempt: 1, deliveries: 2 };

/// Moves the time of day an hour ahead while no time passes.
fn jump(clock: &VirtualClock) {
    clock.jump(clock.now() + 1.hours());
}

#[derive(Default)]
struct Hanging {
    runs: Arc<Runs>,
    signalled: Arc<AtomicBool>,
}

impl Hanging {
    fn handler(&self) -> TestHandler {
        let (runs, signalled) = (Arc::clone(&self.runs), Arc::clone(&self.signalled));
        let handler = TestHandler::new(move |job, _| {
            let (running, signalled) = (runs.count(), Arc::clone(&signalled));
            async move {
                let _running = running;
                job.cancelled().await;
                signalled.store(true, Ordering::SeqCst);
                std::future::pending().await
            }
        });
        handler.with(QueueSettings::new().lease(LEASE).timeout(Duration::MAX))
    }

    fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_job_that_this_runner_claims_again_ends_its_earlier_run_first() {
    let hanging = Hanging::default();
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.grace(1.seconds()).handler(hanging.handler()));
    fixture.wait_for(&FIRST).await;
    jump(&fixture.clock);
    // The next sweep finds the expired lease.
    let before = fixture.advance_until(100.millis(), &SECOND).await;
    assert_eq!(hanging.runs.highest(), 1, "two runs at once");
    assert!(before.contains(&Observed::LeaseLost), "{before:?}");
    fixture.stop_by(100.millis()).await;
}

#[tokio::test]
async fn a_blocking_handler_that_lost_its_lease_delays_the_next_run_until_it_returns() {
    let (mut fixture, blocking) = Fixture::blocking(QueueSettings::new(), |runner| runner).await;
    jump(&fixture.clock);
    fixture.pass(LEASE * 2).await;
    assert_eq!(blocking.runs.highest(), 1, "two runs at once");
    blocking.end(Ok(Outcome::Done));
    blocking.end(Ok(Outcome::Done));
    fixture.wait_for(&SECOND).await;
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop().await;
    assert_eq!(fixture.done().await, 1);
}

#[tokio::test]
async fn a_suspend_is_noticed_at_the_next_renewal_or_the_second_if_the_store_does_not_answer() {
    for (renewals_hang, renewals) in [(false, 1), (true, 2)] {
        let hanging = Hanging::default();
        let mut fixture = Fixture::faulty(Faults { renewals_hang, ..Faults::default() }).await;
        fixture.schedule("x").await;
        let handler = hanging.handler().one_at_once();
        fixture.start(|runner| runner.grace(1.seconds()).handler(handler));
        fixture.wait_for(&FIRST).await;
        jump(&fixture.clock);
        fixture.pass(RENEWAL * renewals).await;
        assert!(hanging.is_signalled(), "the cancellation signal has not fired");
        fixture.stop_by(100.millis()).await;
    }
}

/// The clock jumps during the run, or forward before the claim and back after it.
#[tokio::test]
async fn a_clock_that_jumps_ends_no_lease_of_a_store_with_a_clock_of_its_own() {
    for in_claim in [false, true] {
        let hanging = Hanging::default();
        let (mut fixture, store_clock) = Fixture::with_store_clock(Faults::default()).await;
        let clock = Arc::clone(&fixture.clock);
        fixture.start(|runner| runner.grace(1.seconds()).handler(hanging.handler()));
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
            store_clock.advance(1.seconds());
            fixture.pass(1.seconds()).await;
        }
        assert!(!hanging.is_signalled(), "the lease is held and renewed");
        assert_eq!((fixture.stats().await.running, hanging.runs.highest()), (1, 1));
        fixture.stop_by(100.millis()).await;
    }
}

#[tokio::test]
async fn a_job_whose_lease_ended_in_a_suspend_during_the_claim_does_not_start() {
    let faults = Faults { claim_jumps: 1.hours(), ..Faults::default() };
    let mut fixture = Fixture::faulty_running(faults, TestHandler::done()).await;
    let lost = Observed::Settled(Settled::LostLease);
    let before = fixture.advance_until(Duration::ZERO, &lost).await;
    assert!(!before.contains(&FIRST), "started without a lease");
    fixture.stop_by(100.millis()).await;
}

#[tokio::test]
async fn a_job_whose_lease_may_have_ended_during_the_claim_is_handed_back_and_counts_no_loss() {
    let faults = Faults { claim_jumps: 1.hours(), ..Faults::default() };
    let (mut fixture, _) = Fixture::with_store_clock(faults).await;
    fixture.schedule("x").await;
    fixture.run(TestHandler::done());
    fixture.wait_for(&FIRST).await;
    assert_eq!(fixture.wait_finished().await, "Done");
    fixture.stop_by(100.millis()).await;
}
