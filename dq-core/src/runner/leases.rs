//! The leases of one store that its runs hold.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use tokio_util::sync::CancellationToken;

use crate::backend::{Lease, Renewal};
use crate::sync::lock;

/// The leases whose jobs run, or whose settlements are on their way.
#[derive(Debug, Default)]
pub(super) struct Leases {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: HashMap<u64, Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    lease_for: Duration,
    /// When it ends at the earliest, as [`Clock::elapsed`](crate::Clock::elapsed) counts.
    until: Duration,
    lost: CancellationToken,
}

/// Keeps a lease among those that are renewed, until it is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    leases: Arc<Leases>,
    number: u64,
    pub(super) lost: CancellationToken,
}

impl Leases {
    /// Keeps a lease that was granted for `lease_for` not before `granted`.
    pub(super) fn hold(
        self: &Arc<Self>,
        lease: Lease,
        lease_for: Duration,
        granted: Duration,
    ) -> Hold {
        let lost = CancellationToken::new();
        let held = Held { lease, lease_for, until: granted + lease_for, lost: lost.clone() };
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.held.insert(number, held);
        Hold { leases: Arc::clone(self), number, lost }
    }

    /// Leases of which less than two thirds is left.
    pub(super) fn to_renew(&self, now: Duration) -> Vec<(u64, Renewal)> {
        let state = self.lock();
        let old = |held: &Held| held.until.saturating_sub(now) < held.lease_for * 2 / 3;
        let wanted = state.held.iter().filter(|(_, held)| !held.lost.is_cancelled() && old(held));
        let renewal =
            |held: &Held| Renewal { lease: held.lease.clone(), lease_for: held.lease_for };
        wanted.map(|(number, held)| (*number, renewal(held))).collect()
    }

    /// Notes that a renewal that was asked for at `asked` was granted.
    pub(super) fn renewed(&self, number: u64, asked: Duration) {
        if let Some(held) = self.lock().held.get_mut(&number) {
            held.until = asked + held.lease_for;
        }
    }

    /// Tells the holder that its lease is lost; gives the lease if that is news.
    pub(super) fn lose(&self, number: u64) -> Option<Lease> {
        let state = self.lock();
        let held = state.held.get(&number).filter(|held| !held.lost.is_cancelled())?;
        held.lost.cancel();
        Some(held.lease.clone())
    }

    /// Leases that must have ended, as the store could not be asked in time.
    pub(super) fn ended(&self, now: Duration) -> Vec<u64> {
        let state = self.lock();
        let ended = state.held.iter().filter(|(_, held)| held.until <= now);
        ended.map(|(number, _)| *number).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.leases.lock().held.remove(&self.number);
    }
}
