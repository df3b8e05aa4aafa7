//! The leases held by the runs of one store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use tokio_util::sync::CancellationToken;

use super::lease_clock::LeaseClock;
use crate::backend::{Lease, Renewal};
use crate::clock::Clock;
use crate::model::{JobId, QueueName};
use crate::sync::lock;

/// Identifies a lease in a tracker. Each lease of a job has another number.
pub(super) type LeaseNumber = u64;

/// Leases until their settlement is accepted. All times are by a [`LeaseClock`].
#[derive(Debug)]
pub(super) struct LeaseTracker {
    pub(super) clock: LeaseClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    leases: HashMap<LeaseNumber, TrackedLease>,
    /// The last lease of each job. Two queues may use the same job id.
    by_job: HashMap<(QueueName, JobId), LeaseNumber>,
    next_number: LeaseNumber,
}

#[derive(Debug)]
struct TrackedLease {
    lease: Lease,
    lease_for: Duration,
    /// A time by [`LeaseClock`]; the store may keep the lease longer.
    expires: Duration,
    /// When the last renewal was sent, if unanswered.
    renewal_sent: Option<Duration>,
    lost: CancellationToken,
    /// Fires when this runner gets another lease for the job.
    superseded: CancellationToken,
    run_ended: CancellationToken,
    may_end_job: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) struct EarlierRun {
    pub(super) lost: Option<Lease>,
    pub(super) ended: CancellationToken,
}

#[derive(Debug)]
pub(super) struct LeaseGuard {
    tracker: Arc<LeaseTracker>,
    number: LeaseNumber,
    pub(super) lost: CancellationToken,
    pub(super) superseded: CancellationToken,
    run_ended: CancellationToken,
    /// The lease was lost, and the loss reported, before the run ended.
    pub(super) lost_in_run: bool,
    /// Set by a handler that may end the job in its own transaction.
    pub(super) may_end_job: Arc<AtomicBool>,
}

impl LeaseTracker {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock: LeaseClock::new(clock), state: Mutex::default() }
    }

    /// Tracks a lease granted for `lease_for`, not before `sent_at`. If this runner holds an
    /// earlier lease for the job, marks it as lost and returns the earlier run unless that has
    /// ended.
    pub(super) fn track(
        self: &Arc<Self>,
        lease: Lease,
        lease_for: Duration,
        sent_at: Duration,
    ) -> (LeaseGuard, Option<EarlierRun>) {
        let [lost, superseded, run_ended] = [(); 3].map(|()| CancellationToken::new());
        let may_end_job = Arc::<AtomicBool>::default();
        let job = (lease.queue.clone(), lease.job);
        let tracked = TrackedLease {
            lease,
            lease_for,
            expires: sent_at + lease_for,
            renewal_sent: None,
            lost: lost.clone(),
            superseded: superseded.clone(),
            run_ended: run_ended.clone(),
            may_end_job: Arc::clone(&may_end_job),
        };
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        let earlier = state.by_job.insert(job, number).and_then(|earlier| state.supersede(earlier));
        state.leases.insert(number, tracked);
        let tracker = Arc::clone(self);
        let guard = LeaseGuard {
            tracker,
            number,
            lost,
            superseded,
            run_ended,
            lost_in_run: false,
            may_end_job,
        };
        (guard, earlier)
    }

    /// Returns renewals for leases with less than two thirds of their time left, and how many of
    /// them repeat an unanswered renewal. Marks all as sent.
    ///
    /// Leaves out lost leases, and renewals sent less than a third of the lease ago. An older one
    /// is repeated: its answer may be lost, and the lease outlasts one more call.
    pub(super) fn to_renew(&self, now: Duration) -> (Vec<(LeaseNumber, Renewal)>, usize) {
        let (mut renewals, mut repeated) = (Vec::new(), 0);
        for (number, tracked) in &mut self.lock().leases {
            let third = tracked.lease_for / 3;
            let is_due = tracked.expires.saturating_sub(now) < third * 2;
            let is_sent = tracked.renewal_sent.is_some_and(|sent| now < sent + third);
            if is_due && !is_sent && !tracked.lost.is_cancelled() {
                repeated += usize::from(tracked.renewal_sent.replace(now).is_some());
                let (lease, lease_for) = (tracked.lease.clone(), tracked.lease_for);
                renewals.push((*number, Renewal::new(lease, lease_for)));
            }
        }
        (renewals, repeated)
    }

    /// Records a renewal's answer: the time when a successful call was sent, or `None` for a failed
    /// call, which the next period repeats.
    pub(super) fn renewal_answered(&self, number: LeaseNumber, renewed_at: Option<Duration>) {
        if let Some(tracked) = self.lock().leases.get_mut(&number) {
            // Answers may arrive out of order.
            let renewed_until = renewed_at.map(|sent_at| sent_at + tracked.lease_for);
            tracked.expires = tracked.expires.max(renewed_until.unwrap_or_default());
            tracked.renewal_sent = None;
        }
    }

    /// Marks a lease as lost, which cancels its run. Returns `None` if no run was cancelled: the
    /// lease was already marked or is untracked, its run has ended, or its handler may have ended
    /// the job. The settle loop reports leases lost after their run.
    pub(super) fn mark_lost(&self, number: LeaseNumber) -> Option<Lease> {
        let state = self.lock();
        let tracked = state.leases.get(&number)?;
        if tracked.may_end_job.load(Ordering::Relaxed) {
            return None;
        }
        state.mark_lost(number)
    }

    pub(super) fn expired(&self, now: Duration) -> Vec<LeaseNumber> {
        let state = self.lock();
        let expired = state.leases.iter().filter(|(_, tracked)| tracked.expires <= now);
        expired.map(|(number, _)| *number).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn mark_lost(&self, number: LeaseNumber) -> Option<Lease> {
        let tracked = self.leases.get(&number).filter(|tracked| !tracked.lost.is_cancelled())?;
        tracked.lost.cancel();
        (!tracked.run_ended.is_cancelled()).then(|| tracked.lease.clone())
    }

    fn supersede(&self, number: LeaseNumber) -> Option<EarlierRun> {
        let lost = self.mark_lost(number);
        let tracked = self.leases.get(&number)?;
        tracked.superseded.cancel();
        let ended = tracked.run_ended.clone();
        (!ended.is_cancelled()).then_some(EarlierRun { lost, ended })
    }
}

impl LeaseGuard {
    pub(super) fn may_have_ended_job(&self) -> bool {
        self.may_end_job.load(Ordering::Relaxed)
    }

    /// From now on, [`LeaseTracker::mark_lost`] does not report the loss; the settle loop does.
    pub(super) fn end_run(&mut self) {
        // The lock orders this with a simultaneous loss, so that the loss is reported once.
        let _state = self.tracker.lock();
        self.run_ended.cancel();
        self.lost_in_run = self.lost.is_cancelled();
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut state = self.tracker.lock();
        let removed = state.leases.remove(&self.number);
        if let Some(job) = removed.map(|tracked| (tracked.lease.queue, tracked.lease.job))
            && state.by_job.get(&job) == Some(&self.number)
        {
            state.by_job.remove(&job);
        }
        drop(state);
        self.run_ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::FencingToken;
    use crate::clock::VirtualClock;

    /// A store that separates queues may have one id in two.
    #[test]
    fn leases_of_one_id_in_two_queues_do_not_end_each_other() {
        let tracker = Arc::new(LeaseTracker::new(Arc::new(VirtualClock::default())));
        let track = |queue: &str, token| {
            let queue = QueueName::new(queue).unwrap();
            let lease =
                Lease { queue, job: JobId::from_bytes([1; 16]), token: FencingToken(token) };
            tracker.track(lease, Duration::from_secs(30), tracker.clock.now())
        };
        let (first, _) = track("A", 1);
        let (_other, earlier) = track("B", 1);
        assert!(earlier.is_none() && !first.superseded.is_cancelled());
        let (_again, earlier) = track("A", 2);
        assert!(earlier.is_some() && first.superseded.is_cancelled());
    }
}
