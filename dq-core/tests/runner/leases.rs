//! Leases: renewed during a run; a loss cancels the run, and too many make the job dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{
    Backend, Clock, DeadKind, DurationExt, Lease, Outcome, Settled, Settlement, Verdict,
};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{ACCEPTED, FIRST, Fixture, Observed, TestHandler, finished};
use crate::runner::log_lines::log_lines;

const LEASE: Duration = Duration::from_secs(6);

fn lease() -> QueueSettings {
    QueueSettings::new().lease(LEASE)
}

#[tokio::test]
async fn a_lost_lease_cancels_the_run_and_its_late_settlement_is_stale() {
    let handler = TestHandler::new(async |job, _| {
        if job.deliveries() == 1 {
            job.cancelled().await;
        }
        Ok(Outcome::Done)
    });
    let mut fixture = Fixture::running(handler.with(lease()).one_at_once()).await;
    fixture.wait_for(&FIRST).await;
    fixture.clock.advance(LEASE * 2);
    let (mut lost, mut stale, mut again) = (false, false, false);
    while !(lost && stale && again) {
        match fixture.next().await {
            Observed::LeaseLost => lost = true,
            Observed::Settled(Settled::LostLease) => stale = true,
            Observed::Started { attempt, deliveries } => {
                assert_eq!((attempt, deliveries), (1, 2), "a crash is a delivery, not an attempt");
                again = true;
            }
            _ => {}
        }
    }
    fixture.stop().await;
    let totals = fixture.stats().await.totals.unwrap();
    assert_eq!((totals.created, totals.done), (1, 1));
    let text = log_lines();
    let warning = text.lines().find(|line| line.contains("the lease was lost")).unwrap();
    assert!(warning.contains("make it a plain `fn` with `blocking`"), "{warning}");
}

#[tokio::test]
async fn a_job_whose_leases_expired_max_losses_times_in_a_row_is_dead_without_another_run() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    for _ in 0..3 {
        assert_eq!(fixture.claim(LEASE).await.len(), 1);
        fixture.clock.advance(LEASE);
    }
    fixture.run(TestHandler::done().with(QueueSettings::new().max_losses(3)));
    fixture.wait_for(&Observed::Dead(DeadKind::Lost)).await;
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    fixture.stop().await;
    let text = log_lines();
    let line = text.lines().find(|line| line.contains("ERROR")).unwrap();
    for needle in ["queue=Q", "dead", "3 consecutive leases expired"] {
        assert!(line.contains(needle), "{needle} is missing in {line}");
    }
    let (dead, kind, _) = fixture.dead_job().await;
    assert_eq!((kind, dead.job.attempts, dead.job.losses), (DeadKind::Lost, 0, 3));
}

#[tokio::test]
async fn slow_renewals_keep_the_lease_and_unanswered_ones_are_repeated_while_it_lasts() {
    for faults in [
        Faults::default(),
        // Longer than a sixth of the lease.
        Faults { calls_take: 200.millis(), ..Faults::default() },
        Faults { renewals_lost: 1, ..Faults::default() },
    ] {
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let handler = TestHandler::new(move |job, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                job.sleep(3.seconds()).await;
                assert!(!job.is_cancelled(), "it keeps its lease");
                Ok(Outcome::Done)
            }
        });
        let handler = handler.with(QueueSettings::new().lease(1.seconds()));
        let mut fixture = Fixture::faulty_running(faults, handler).await;
        fixture.advance_until(10.millis(), &ACCEPTED).await;
        fixture.stop_by(10.millis()).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn leases_are_renewed_after_the_clock_is_set_back() {
    let handler = TestHandler::hangs().with(lease().timeout(Duration::MAX));
    let mut fixture = Fixture::running(handler).await;
    fixture.wait_for(&FIRST).await;
    for _ in 0..3 {
        fixture.clock.jump(fixture.clock.now() - 1.hours());
        fixture.advance_until(250.millis(), &Observed::Renewed).await;
    }
    fixture.stop_by(1.seconds()).await;
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_in_time_is_reported_as_lost() {
    let faults = Faults { renewals_hang: true, ..Faults::default() };
    let handler = TestHandler::until_cancelled().with(lease());
    let mut fixture = Fixture::faulty_running(faults, handler).await;
    fixture.wait_for(&FIRST).await;
    fixture.advance_until(250.millis(), &Observed::LeaseLost).await;
    fixture.stop_by(250.millis()).await;
}

/// The store then answers as if the lease was lost.
#[tokio::test]
async fn a_handler_may_end_its_job_in_its_own_transaction_and_go_on() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let store = Arc::clone(&fixture.store);
    let handler = TestHandler::new(move |job, _| {
        let store = Arc::clone(&store);
        async move {
            let lease =
                Lease { queue: job.queue().clone(), job: job.id(), token: job.fencing_token() };
            let statement = job.done_statement()?;
            assert!(statement.argument().contains(&lease.token.0.to_string()));
            let done = [Settlement::new(lease, Verdict::Done)];
            assert_eq!(Backend::settle(&*store, &done).await?, [Settled::Accepted]);
            job.sleep(LEASE * 2).await;
            assert!(!job.is_cancelled());
            Ok(Outcome::Done)
        }
    });
    fixture.run(handler.with(lease()));
    let settled = Observed::SettledBefore(Settled::LostLease);
    let before = fixture.advance_until(100.millis(), &settled).await;
    assert!(before.contains(&FIRST) && before.contains(&finished("Done")), "{before:?}");
    assert!(!before.contains(&Observed::LeaseLost), "{before:?}");
    fixture.stop().await;
    assert_eq!(fixture.done().await, 1);
}
