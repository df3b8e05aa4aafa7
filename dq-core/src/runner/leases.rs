//! The leases that the runs of one store hold.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use tokio_util::sync::CancellationToken;

use super::lease_clock::{LeaseClock, LeaseTime};
use crate::backend::{Lease, Renewal};
use crate::clock::Clock;
use crate::model::{JobId, QueueName};
use crate::sync::lock;

/// The leases of jobs that run or whose settlements are not yet accepted. All times are by a
/// [`LeaseClock`].
#[derive(Debug)]
pub(super) struct LeaseTracker {
    clock: LeaseClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By a number that is unique in this tracker.
    leases: HashMap<u64, TrackedLease>,
    /// The number of the last lease of each job. The same id may be in two queues.
    by_job: HashMap<(QueueName, JobId), u64>,
    next_number: u64,
}

#[derive(Debug)]
struct TrackedLease {
    lease: Lease,
    lease_for: Duration,
    /// The earliest time at which it may end.
    expires: Duration,
    /// When the last renewal was sent, if it is not answered yet.
    renewal_sent: Option<Duration>,
    /// Fires when the lease is lost.
    lost: CancellationToken,
    /// Fires when this runner gets another lease of the job.
    superseded: CancellationToken,
    /// Fires when the handler has ended; the lease is held until the run is settled.
    run_ended: CancellationToken,
}

/// The run of an earlier lease of the same job.
#[derive(Debug)]
pub(super) struct EarlierRun {
    /// The earlier lease, if it was not known as lost before.
    pub(super) lost: Option<Lease>,
    /// Fires when the handler has ended.
    pub(super) ended: CancellationToken,
}

/// Keeps a lease in the tracker until it is dropped.
#[derive(Debug)]
pub(super) struct LeaseGuard {
    tracker: Arc<LeaseTracker>,
    number: u64,
    /// Fires when the lease is lost.
    pub(super) lost: CancellationToken,
    /// Fires when this runner gets another lease of the job.
    pub(super) superseded: CancellationToken,
    run_ended: CancellationToken,
    /// Whether the lease was lost, and reported as such, before the run ended.
    pub(super) lost_in_run: bool,
}

impl LeaseTracker {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock: LeaseClock::new(clock), state: Mutex::default() }
    }

    /// The time at which a call of the store is sent, for [`track`](Self::track) and
    /// [`renewed`](Self::renewed).
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// See [`LeaseClock::tick`].
    pub(super) fn tick(&self) -> LeaseTime {
        self.clock.tick()
    }

    /// Adds a lease that was granted for `lease_for`, not before `sent_at`. An earlier lease of the
    /// same job is marked as lost; its run is returned unless it has ended.
    pub(super) fn track(
        self: &Arc<Self>,
        lease: Lease,
        lease_for: Duration,
        sent_at: Duration,
    ) -> (LeaseGuard, Option<EarlierRun>) {
        let [lost, superseded, run_ended] = [(); 3].map(|()| CancellationToken::new());
        let job = (lease.queue.clone(), lease.job);
        let tracked = TrackedLease {
            lease,
            lease_for,
            expires: sent_at + lease_for,
            renewal_sent: None,
            lost: lost.clone(),
            superseded: superseded.clone(),
            run_ended: run_ended.clone(),
        };
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        let earlier = state.by_job.insert(job, number).and_then(|earlier| state.supersede(earlier));
        state.leases.insert(number, tracked);
        let tracker = Arc::clone(self);
        let guard = LeaseGuard { tracker, number, lost, superseded, run_ended, lost_in_run: false };
        (guard, earlier)
    }

    /// The leases with less than two thirds of their duration left, by number, and how many of them
    /// were sent for renewal before without an answer. They count as sent now.
    ///
    /// A renewal that is not answered within a third of the lease is repeated: the answer may be
    /// lost, and the lease lasts long enough for one more call.
    pub(super) fn to_renew(&self, now: Duration) -> (Vec<(u64, Renewal)>, usize) {
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

    /// Records that a renewal was granted, not before `sent_at`.
    pub(super) fn renewed(&self, number: u64, sent_at: Duration) {
        if let Some(tracked) = self.lock().leases.get_mut(&number) {
            // Answers may arrive in another order than the calls were sent.
            tracked.expires = tracked.expires.max(sent_at + tracked.lease_for);
            tracked.renewal_sent = None;
        }
    }

    /// Records that a renewal failed, so that the next period repeats it.
    pub(super) fn renewal_failed(&self, number: u64) {
        if let Some(tracked) = self.lock().leases.get_mut(&number) {
            tracked.renewal_sent = None;
        }
    }

    /// Marks a lease as lost, which cancels its run; returns the lease, or `None` if no run was
    /// cancelled: the lease is already marked or no longer tracked, or its run has ended. The settle
    /// loop reports a lease that is lost after its run.
    pub(super) fn mark_lost(&self, number: u64) -> Option<Lease> {
        self.lock().mark_lost(number)
    }

    /// The numbers of the leases that have expired because they could not be renewed in time.
    pub(super) fn expired(&self, now: Duration) -> Vec<u64> {
        let state = self.lock();
        let expired = state.leases.iter().filter(|(_, tracked)| tracked.expires <= now);
        expired.map(|(number, _)| *number).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn mark_lost(&self, number: u64) -> Option<Lease> {
        let tracked = self.leases.get(&number).filter(|tracked| !tracked.lost.is_cancelled())?;
        tracked.lost.cancel();
        (!tracked.run_ended.is_cancelled()).then(|| tracked.lease.clone())
    }

    fn supersede(&self, number: u64) -> Option<EarlierRun> {
        let lost = self.mark_lost(number);
        let tracked = self.leases.get(&number)?;
        tracked.superseded.cancel();
        let ended = tracked.run_ended.clone();
        (!ended.is_cancelled()).then_some(EarlierRun { lost, ended })
    }
}

impl LeaseGuard {
    /// Records that the handler has ended, so that a loss of the lease cancels nothing.
    pub(super) fn end_run(&mut self) {
        // A loss at the same time comes before both or after both, so that it is reported once.
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
