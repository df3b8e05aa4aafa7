//! Leases: renewed during a run; a loss cancels the run, and too many make the job dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dq_core::{
    Backend, ClaimParams, DeadKind, DurationExt, JobState, MemoryBackend, Outcome, QueueName,
    Settled, VirtualClock, Want,
};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{FIRST, Fixture, Observed, QUEUE, TestHandler};
use crate::runner::log_lines::log_lines;

const LEASE: Duration = Duration::from_secs(6);

#[tokio::test]
async fn a_lost_lease_cancels_the_run_and_its_late_settlement_is_stale() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let first = Arc::new(AtomicBool::new(true));
    let handle = TestHandler::new(move |job, _| {
        let first = first.swap(false, Ordering::SeqCst);
        async move {
            if first {
                job.cancelled().await;
            }
            Ok(Outcome::Done)
        }
    });
    fixture.start(|runner| {
        runner.handler(handle.with(|settings| {
            settings.lease = Some(LEASE);
            // So that the runner cannot claim the job again, which ends the run at once.
            settings.concurrency = Some(1);
        }))
    });
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
}

#[tokio::test]
async fn a_job_whose_leases_expired_max_losses_times_in_a_row_is_dead_without_another_run() {
    let clock = Arc::new(VirtualClock::default());
    let backend = Arc::new(MemoryBackend::new(clock.clone()));
    let mut fixture = Fixture::with_backend(backend.clone(), clock).await;
    fixture.schedule("x").await;
    let queue = QueueName::new(QUEUE).unwrap();
    for _ in 0..3 {
        let wants = [Want::new(queue.clone(), 1, LEASE)];
        let params = ClaimParams::new(&wants, 1, "crashes");
        assert_eq!(backend.claim(params).await.unwrap().jobs.len(), 1);
        fixture.clock.advance(LEASE);
    }
    fixture.start(|runner| {
        runner.handler(TestHandler::done().with(|settings| settings.max_losses = Some(3)))
    });
    fixture.wait_for(&Observed::Dead(DeadKind::Lost)).await;
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    fixture.stop().await;
    let text = log_lines();
    let line = text.lines().find(|line| line.contains("ERROR")).unwrap();
    for needle in ["queue=Q", "dead", "3 consecutive leases expired"] {
        assert!(line.contains(needle), "{needle} is missing in {line}");
    }
    let dead = fixture.dq.queue(QUEUE).unwrap().browse(JobState::Dead).limit(1).await.unwrap();
    let job = &dead.jobs[0];
    assert_eq!(job.dead.as_ref().unwrap().0.kind, DeadKind::Lost);
    assert_eq!((job.job.attempts, job.job.losses), (0, 3));
}

async fn runs_with_a_lease_of_one_second(faults: Faults) -> u32 {
    let mut fixture = Fixture::faulty(faults).await;
    fixture.schedule("x").await;
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let handle = TestHandler::new(move |job, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            job.sleep(3.seconds()).await;
            assert!(!job.is_cancelled(), "it keeps its lease");
            Ok(Outcome::Done)
        }
    });
    fixture
        .start(|runner| runner.handler(handle.with(|settings| settings.lease = Some(1.seconds()))));
    fixture.advance_until(10.millis(), &Observed::Settled(Settled::Accepted)).await;
    fixture.stop_by(10.millis()).await;
    runs.load(Ordering::SeqCst)
}

#[tokio::test]
async fn slow_renewals_keep_the_lease_and_unanswered_ones_are_repeated_while_it_lasts() {
    for faults in [
        Faults::default(),
        // Longer than a sixth of the lease.
        Faults { calls_take: 200.millis(), ..Faults::default() },
        Faults { renewals_lost: 1, ..Faults::default() },
    ] {
        assert_eq!(runs_with_a_lease_of_one_second(faults).await, 1);
    }
}
