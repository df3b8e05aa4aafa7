//! Leases by observed time: a lease expires when a process has seen no renewal for its length, by
//! that process's elapsed time. No time of day takes part.
//!
//! The process then appends an entry with the lease's token and renewal count. The entry ends the
//! lease if both are still the same there, so all replicas agree and an earlier renewal counts. A
//! process that starts waits for the whole length.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use dq_core::{JobId, QueueName, Want};

use crate::log::wire::{StandingLease, millis};

/// A lease expires this much earlier, because its holder truncates the end to milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct ObservedLeases {
    leases: HashMap<JobId, ObservedLease>,
    /// Expiry by queue, without the leases that this process has named.
    expiries: HashMap<QueueName, BTreeSet<(Duration, JobId)>>,
}

#[derive(Debug)]
struct ObservedLease {
    /// Equal in all replicas.
    lease: StandingLease,
    /// `None` after this process has named it as expired.
    expires_at: Option<Duration>,
}

impl ObservedLeases {
    /// Adds or replaces a lease that was seen at this elapsed time.
    pub(crate) fn observe(&mut self, lease: StandingLease, seen: Duration) {
        let job = lease.job;
        self.end(job);
        let expires_at = seen.saturating_add(Duration::from_millis(lease.lease_for));
        self.expiries.entry(lease.queue.clone()).or_default().insert((expires_at, job));
        self.leases.insert(job, ObservedLease { lease, expires_at: Some(expires_at) });
    }

    pub(crate) fn renew(&mut self, job: JobId, lease_for: Duration, seen: Duration) {
        if let Some(ObservedLease { lease, .. }) = self.leases.get(&job) {
            let renewals = lease.renewals.wrapping_add(1);
            let lease_for = millis(lease_for);
            self.observe(StandingLease { renewals, lease_for, ..lease.clone() }, seen);
        }
    }

    pub(crate) fn end(&mut self, job: JobId) {
        if let Some(ObservedLease { lease, expires_at }) = self.leases.remove(&job) {
            self.forget_expiry(&lease.queue, job, expires_at);
        }
    }

    fn forget_expiry(&mut self, queue: &QueueName, job: JobId, expires_at: Option<Duration>) {
        let Some(expires_at) = expires_at else { return };
        if let Some(expiries) = self.expiries.get_mut(queue) {
            expiries.remove(&(expires_at, job));
            if expiries.is_empty() {
                self.expiries.remove(queue);
            }
        }
    }

    /// Whether the lease was neither ended nor renewed since it was named.
    pub(crate) fn stands(&self, named: &StandingLease) -> bool {
        self.leases.get(&named.job).is_some_and(|ObservedLease { lease, .. }| {
            (lease.token, lease.renewals) == (named.token, named.renewals)
        })
    }

    /// Names the expired leases, each once.
    pub(crate) fn name_expired(&mut self, now: Duration) -> Vec<StandingLease> {
        let until = now + ROUNDING;
        let of_queues = self.expiries.values();
        let expired = of_queues.flat_map(|it| it.iter().take_while(|(at, _)| *at <= until));
        let expired: Vec<_> = expired.map(|(_, job)| *job).collect();
        let name = |job: JobId| {
            let ObservedLease { lease, expires_at } = self.leases.get_mut(&job)?;
            let (named, expires_at) = (lease.clone(), expires_at.take());
            self.forget_expiry(&named.queue, job, expires_at);
            Some(named)
        };
        expired.into_iter().filter_map(name).collect()
    }

    pub(crate) fn next_expiry<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
    ) -> Option<Duration> {
        queues.filter_map(|queue| Some(self.expiries.get(queue)?.first()?.0)).min()
    }

    pub(crate) fn has_expired(&self, wants: &[Want], now: Duration) -> bool {
        let first = self.next_expiry(wants.iter().map(|want| &want.queue));
        first.is_some_and(|at| at <= now + ROUNDING)
    }

    /// Lists the leases without their times.
    pub(crate) fn to_wire(&self) -> Vec<StandingLease> {
        let mut leases: Vec<_> = self.leases.values().map(|it| it.lease.clone()).collect();
        leases.sort_unstable_by_key(|lease| lease.job);
        leases
    }
}
