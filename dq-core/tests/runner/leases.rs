//! Leases: kept while the handler runs, lost with notice, limited in a row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::{
    Backend, ClaimParams, DeadKind, DurationExt, JobState, MemoryBackend, Outcome, QueueName,
    Settled, VirtualClock, Want,
};
use tokio::sync::Notify;

use crate::rig::{Handle, QUEUE, Rig, Said};

const LEASE: Duration = Duration::from_secs(6);

#[tokio::test]
async fn a_long_handler_keeps_its_lease() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    let finish = Arc::new(Notify::new());
    let gate = Arc::clone(&finish);
    let handle = Handle::new(move |job, _| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            assert!(!job.is_cancelled(), "slow is not dead");
            Ok(Outcome::Done)
        }
    });
    rig.start(|runner| runner.handler(handle.with(|settings| settings.lease = Some(LEASE))));
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    for _ in 0..10 {
        rig.advance_until(250.millis(), &Said::Renewed).await;
    }
    let stats = rig.stats().await;
    assert_eq!((stats.running, stats.ready), (1, 0), "no other runner can have it");
    finish.notify_one();
    assert_eq!(rig.until_settled().await, Settled::Accepted);
    rig.stop().await;
}

#[tokio::test]
async fn a_lost_lease_fires_the_signal_and_the_late_answer_changes_nothing() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    let first = Arc::new(AtomicBool::new(true));
    let handle = Handle::new(move |job, _| {
        let first = first.swap(false, Ordering::SeqCst);
        async move {
            if first {
                job.cancelled().await;
            }
            Ok(Outcome::Done)
        }
    });
    rig.start(|runner| runner.handler(handle.with(|settings| settings.lease = Some(LEASE))));
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    // Time jumps, as after a stopped machine: the lease has lapsed before it could be renewed.
    rig.clock.advance(LEASE * 2);
    let (mut lost, mut stale, mut again) = (false, false, false);
    while !(lost && stale && again) {
        match rig.next().await {
            Said::LeaseLost => lost = true,
            Said::Settled(Settled::Stale) => stale = true,
            Said::Started { attempt, deliveries } => {
                assert_eq!((attempt, deliveries), (1, 2), "a crash is a delivery, not an attempt");
                again = true;
            }
            _ => {}
        }
    }
    rig.stop().await;
    let totals = rig.stats().await.totals.unwrap();
    assert_eq!((totals.created, totals.done), (1, 1));
}

#[tokio::test]
async fn a_job_that_loses_its_lease_too_often_is_dead() {
    let clock = Arc::new(VirtualClock::default());
    let backend = Arc::new(MemoryBackend::new(clock.clone()));
    let mut rig = Rig::on(backend.clone(), clock).await;
    rig.schedule("x").await;
    let queue = QueueName::new(QUEUE).unwrap();
    for _ in 0..3 {
        let wants = [Want { queue: queue.clone(), max: 1, lease_for: LEASE }];
        let params = ClaimParams { wants: &wants, limit: 1, worker: "crashes" };
        assert_eq!(backend.claim(params).await.unwrap().jobs.len(), 1);
        rig.clock.advance(LEASE);
    }
    rig.start(|runner| {
        runner.handler(Handle::done().with(|settings| settings.max_losses = Some(3)))
    });
    assert_eq!(rig.until_settled().await, Settled::Accepted);
    rig.stop().await;
    let dead = rig.dq.queue(QUEUE).unwrap().browse(JobState::Dead, None, 1).await.unwrap();
    let job = &dead.jobs[0];
    assert_eq!(job.dead.as_ref().unwrap().0.kind, DeadKind::Lost);
    assert_eq!((job.job.attempts, job.job.losses), (0, 3));
}
