//! One timer that keeps all leases of one store, whatever their handlers are doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio_util::sync::CancellationToken;

use super::Event;
use super::pump::Source;
use super::slots::BATCH;
use crate::backend::{Backend, Lease, Renewal, Renewed};
use crate::model::Timestamp;

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
    /// When it ends at the earliest, by the runner's clock.
    until: Timestamp,
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
        granted: Timestamp,
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
    fn to_renew(&self, now: Timestamp) -> Vec<(u64, Renewal)> {
        let state = self.lock();
        let old = |held: &Held| held.until.since(now) < held.lease_for * 2 / 3;
        let wanted = state.held.iter().filter(|(_, held)| !held.lost.is_cancelled() && old(held));
        let renewal =
            |held: &Held| Renewal { lease: held.lease.clone(), lease_for: held.lease_for };
        wanted.map(|(number, held)| (*number, renewal(held))).collect()
    }

    /// Notes that a renewal that was asked for at `asked` was granted.
    fn renewed(&self, number: u64, asked: Timestamp) {
        if let Some(held) = self.lock().held.get_mut(&number) {
            held.until = asked + held.lease_for;
        }
    }

    /// Tells the holder that its lease is lost; gives the lease if that is news.
    fn lose(&self, number: u64) -> Option<Lease> {
        let state = self.lock();
        let held = state.held.get(&number).filter(|held| !held.lost.is_cancelled())?;
        held.lost.cancel();
        Some(held.lease.clone())
    }

    /// Leases that must have ended, as the store could not be asked in time.
    fn ended(&self, now: Timestamp) -> Vec<u64> {
        let state = self.lock();
        let ended = state.held.iter().filter(|(_, held)| held.until <= now);
        ended.map(|(number, _)| *number).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.leases.lock().held.remove(&self.number);
    }
}

/// Renews until the runner has stopped. A tick is a sixth of the shortest lease, so that a lease is
/// renewed while at least half of it is left; a tick without old leases costs no store call.
pub(super) async fn run(source: Arc<Source>) {
    let machine = &source.machine;
    let shortest = machine.served.iter().map(|served| served.policy.lease).min();
    let tick = shortest.unwrap_or(Duration::from_secs(60)) / 6;
    loop {
        machine.clock().sleep(tick).await;
        renew(&source).await;
        for number in source.leases.ended(machine.now()) {
            tell_lost(&source, number);
        }
    }
}

async fn renew(source: &Source) {
    let machine = &source.machine;
    let old = source.leases.to_renew(machine.now());
    for batch in old.chunks(BATCH) {
        let asked = machine.now();
        let renewals: Vec<_> = batch.iter().map(|(_, renewal)| renewal.clone()).collect();
        match source.store.renew(&renewals).await {
            Ok(answers) => {
                machine.observers.tell(&Event::Renewed { leases: answers.len() });
                for ((number, _), answer) in batch.iter().zip(answers) {
                    match answer {
                        Renewed::Until(_) => source.leases.renewed(*number, asked),
                        Renewed::Lost => tell_lost(source, *number),
                    }
                }
            }
            // The next tick asks again; there are at least three before a lease ends.
            Err(error) => {
                tracing::warn!(%error, "leases could not be renewed");
                machine.observers.tell(&Event::StoreFailed(&error));
            }
        }
    }
}

fn tell_lost(source: &Source, number: u64) {
    if let Some(lease) = source.leases.lose(number) {
        tracing::warn!(queue = %lease.queue, id = %lease.job, "the lease was lost while the handler ran");
        source.machine.observers.tell(&Event::LeaseLost(&lease));
    }
}
