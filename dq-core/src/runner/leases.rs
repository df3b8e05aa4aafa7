//! The leases that the runs of one store hold.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use tokio_util::sync::CancellationToken;

use crate::backend::{Lease, Renewal};
use crate::sync::lock;

/// The leases of jobs that run or whose settlements are not yet accepted.
#[derive(Debug, Default)]
pub(super) struct LeaseTracker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By a number that is unique in this tracker.
    leases: HashMap<u64, TrackedLease>,
    next_number: u64,
}

#[derive(Debug)]
struct TrackedLease {
    lease: Lease,
    lease_for: Duration,
    /// The earliest time at which it may end, by [`Clock::elapsed`](crate::Clock::elapsed).
    expires: Duration,
    /// Fires when the lease is lost.
    lost: CancellationToken,
}

/// Keeps a lease in the tracker until it is dropped.
#[derive(Debug)]
pub(super) struct LeaseGuard {
    tracker: Arc<LeaseTracker>,
    number: u64,
    /// Fires when the lease is lost.
    pub(super) lost: CancellationToken,
}

impl LeaseTracker {
    /// Adds a lease that was granted for `lease_for`, not before `sent_at`.
    ///
    /// This and the other times of this type are by [`Clock::elapsed`](crate::Clock::elapsed).
    pub(super) fn track(
        self: &Arc<Self>,
        lease: Lease,
        lease_for: Duration,
        sent_at: Duration,
    ) -> LeaseGuard {
        let lost = CancellationToken::new();
        let expires = sent_at + lease_for;
        let tracked = TrackedLease { lease, lease_for, expires, lost: lost.clone() };
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.leases.insert(number, tracked);
        LeaseGuard { tracker: Arc::clone(self), number, lost }
    }

    /// The leases with less than two thirds of their duration left, by number.
    pub(super) fn to_renew(&self, now: Duration) -> Vec<(u64, Renewal)> {
        let state = self.lock();
        let is_due = |tracked: &TrackedLease| {
            !tracked.lost.is_cancelled()
                && tracked.expires.saturating_sub(now) < tracked.lease_for * 2 / 3
        };
        let renewal = |tracked: &TrackedLease| Renewal {
            lease: tracked.lease.clone(),
            lease_for: tracked.lease_for,
        };
        let due = state.leases.iter().filter(|(_, tracked)| is_due(tracked));
        due.map(|(number, tracked)| (*number, renewal(tracked))).collect()
    }

    /// Records that a renewal was granted, not before `sent_at`.
    pub(super) fn renewed(&self, number: u64, sent_at: Duration) {
        if let Some(tracked) = self.lock().leases.get_mut(&number) {
            tracked.expires = sent_at + tracked.lease_for;
        }
    }

    /// Marks a lease as lost, which cancels its run; returns the lease, or `None` if it is already
    /// marked or no longer tracked.
    pub(super) fn mark_lost(&self, number: u64) -> Option<Lease> {
        let state = self.lock();
        let tracked = state.leases.get(&number).filter(|tracked| !tracked.lost.is_cancelled())?;
        tracked.lost.cancel();
        Some(tracked.lease.clone())
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

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.tracker.lock().leases.remove(&self.number);
    }
}
