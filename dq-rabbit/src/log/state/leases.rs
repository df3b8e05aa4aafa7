//! Leases by observed time: a lease expires when a process has seen no renewal for its length, by
//! that process's elapsed time. No time of day takes part.
//!
//! The process then appends an entry with the lease's token and renewal count. The entry ends the
//! lease if both are still the same there, so all replicas agree and an earlier renewal counts. A
//! process that starts waits for the whole length.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use dq_core::{FencingToken, JobId, Lease, QueueName, Want};

use crate::log::wire::StandingLease;

/// A lease expires this much earlier, because its holder truncates the end to milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// All leases, with their expiry by this process's elapsed time. Only tokens, renewals and lengths
/// are equal in all replicas.
#[derive(Debug, Default)]
pub(crate) struct ObservedLeases {
    leases: HashMap<JobId, ObservedLease>,
    /// Expiry by queue, without the leases that this process has named.
    expiries: HashMap<QueueName, BTreeSet<(Duration, JobId)>>,
}

/// A lease as this process has seen it.
#[derive(Debug)]
struct ObservedLease {
    queue: QueueName,
    token: FencingToken,
    renewals: u32,
    lease_for: Duration,
    /// `None` after this process has named it as expired.
    expires_at: Option<Duration>,
}

impl ObservedLeases {
    /// Adds a lease whose grant was seen at this elapsed time.
    pub(crate) fn grant(&mut self, lease: Lease, lease_for: Duration, seen: Duration) {
        let Lease { queue, job, token } = lease;
        self.insert(queue, job, token, 0, lease_for, seen);
    }

    pub(crate) fn restore(&mut self, lease: StandingLease, seen: Duration) {
        let StandingLease { queue, job, token, renewals, lease_for } = lease;
        let lease_for = Duration::from_millis(lease_for);
        self.insert(queue, job, FencingToken(token), renewals, lease_for, seen);
    }

    fn insert(
        &mut self,
        queue: QueueName,
        job: JobId,
        token: FencingToken,
        renewals: u32,
        lease_for: Duration,
        seen: Duration,
    ) {
        self.end(job);
        let expires_at = seen.saturating_add(lease_for);
        self.expiries.entry(queue.clone()).or_default().insert((expires_at, job));
        let lease =
            ObservedLease { queue, token, renewals, lease_for, expires_at: Some(expires_at) };
        self.leases.insert(job, lease);
    }

    pub(crate) fn renew(&mut self, job: JobId, lease_for: Duration, seen: Duration) {
        let Some(lease) = self.leases.remove(&job) else { return };
        let ObservedLease { queue, token, renewals, expires_at, .. } = lease;
        self.forget_expiry(&queue, job, expires_at);
        self.insert(queue, job, token, renewals.wrapping_add(1), lease_for, seen);
    }

    pub(crate) fn end(&mut self, job: JobId) {
        if let Some(ObservedLease { queue, expires_at, .. }) = self.leases.remove(&job) {
            self.forget_expiry(&queue, job, expires_at);
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
        self.leases
            .get(&named.job)
            .is_some_and(|lease| (lease.token.0, lease.renewals) == (named.token, named.renewals))
    }

    /// Names the expired leases, each once.
    pub(crate) fn name_expired(&mut self, now: Duration) -> Vec<StandingLease> {
        let until = now + ROUNDING;
        let expired = self
            .expiries
            .values()
            .flat_map(|of_queue| of_queue.iter().take_while(|(at, _)| *at <= until));
        let expired: Vec<_> = expired.map(|(_, job)| *job).collect();
        let name = |job: JobId| {
            let lease = self.leases.get_mut(&job)?;
            let (queue, expires_at) = (lease.queue.clone(), lease.expires_at.take());
            let named = lease.to_wire(job);
            self.forget_expiry(&queue, job, expires_at);
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

    /// Lists the leases without their times, which is equal in all replicas.
    pub(crate) fn to_wire(&self) -> Vec<StandingLease> {
        let mut leases: Vec<_> =
            self.leases.iter().map(|(job, lease)| lease.to_wire(*job)).collect();
        leases.sort_unstable_by_key(|lease| lease.job);
        leases
    }
}

impl ObservedLease {
    fn to_wire(&self, job: JobId) -> StandingLease {
        StandingLease {
            queue: self.queue.clone(),
            job,
            token: self.token.0,
            renewals: self.renewals,
            lease_for: u64::try_from(self.lease_for.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
