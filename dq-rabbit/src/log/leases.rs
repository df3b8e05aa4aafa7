//! Leases by observed time: a lease ends when a process has seen no renewal of it for as long as it
//! lasts, by the elapsed time of that process. No time of day takes part.
//!
//! Such a process does not end the lease by itself. It appends an entry that names the lease with its
//! token and the number of its renewals, and the entry ends the lease if both are still the same at
//! that position of the log. So all replicas agree, and a renewal that is in the log first counts. A
//! process that has just started has seen nothing before, so it waits for the whole length of a
//! lease.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use dq_core::{FencingToken, JobId, Lease, QueueName, Want};

use super::wire::StandingLease;

/// A lease counts as over this much earlier: its length is in milliseconds, and the time of day, by
/// which its holder names the end of it, is truncated to milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// The leases that stand, and when each lapses by the elapsed time of this process.
///
/// Tokens, renewals and lengths are equal in all replicas, the rest is not.
#[derive(Debug, Default)]
pub(crate) struct ObservedLeases {
    leases: HashMap<JobId, ObservedLease>,
    /// By queue: when leases lapse, without those that this process has named.
    lapses: HashMap<QueueName, BTreeSet<(Duration, JobId)>>,
}

#[derive(Debug)]
struct ObservedLease {
    queue: QueueName,
    token: FencingToken,
    renewals: u32,
    lease_for: Duration,
    /// `None` if this process has named it as lapsed.
    lapses_at: Option<Duration>,
}

impl ObservedLeases {
    /// Records a lease that was seen granted at this elapsed time.
    pub(crate) fn grant(&mut self, lease: Lease, lease_for: Duration, seen: Duration) {
        let Lease { queue, job, token } = lease;
        self.insert(queue, job, token, 0, lease_for, seen);
    }

    /// Records a lease of a snapshot.
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
        let lapses_at = seen.saturating_add(lease_for);
        self.lapses.entry(queue.clone()).or_default().insert((lapses_at, job));
        let lease = ObservedLease { queue, token, renewals, lease_for, lapses_at: Some(lapses_at) };
        self.leases.insert(job, lease);
    }

    /// Records a renewal that was seen at this elapsed time.
    pub(crate) fn renew(&mut self, job: JobId, lease_for: Duration, seen: Duration) {
        let Some(lease) = self.leases.remove(&job) else { return };
        let ObservedLease { queue, token, renewals, lapses_at, .. } = lease;
        self.forget_lapse(&queue, job, lapses_at);
        self.insert(queue, job, token, renewals.wrapping_add(1), lease_for, seen);
    }

    /// Records the end of a lease.
    pub(crate) fn end(&mut self, job: JobId) {
        if let Some(ObservedLease { queue, lapses_at, .. }) = self.leases.remove(&job) {
            self.forget_lapse(&queue, job, lapses_at);
        }
    }

    fn forget_lapse(&mut self, queue: &QueueName, job: JobId, lapses_at: Option<Duration>) {
        let Some(lapses_at) = lapses_at else { return };
        if let Some(lapses) = self.lapses.get_mut(queue) {
            lapses.remove(&(lapses_at, job));
            if lapses.is_empty() {
                self.lapses.remove(queue);
            }
        }
    }

    /// Whether this lease stands and has not been renewed since it was named.
    pub(crate) fn stands(&self, named: &StandingLease) -> bool {
        self.leases
            .get(&named.job)
            .is_some_and(|lease| (lease.token.0, lease.renewals) == (named.token, named.renewals))
    }

    /// Names the leases that have lapsed by this elapsed time; each once.
    pub(crate) fn name_lapsed(&mut self, now: Duration) -> Vec<StandingLease> {
        let until = now + ROUNDING;
        let lapsed = self
            .lapses
            .values()
            .flat_map(|of_queue| of_queue.iter().take_while(|(at, _)| *at <= until));
        let lapsed: Vec<_> = lapsed.map(|(_, job)| *job).collect();
        let name = |job: JobId| {
            let lease = self.leases.get_mut(&job)?;
            let (queue, lapses_at) = (lease.queue.clone(), lease.lapses_at.take());
            let named = lease.to_wire(job);
            self.forget_lapse(&queue, job, lapses_at);
            Some(named)
        };
        lapsed.into_iter().filter_map(name).collect()
    }

    /// The elapsed time at which the first lease of these queues lapses.
    pub(crate) fn next_lapse<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
    ) -> Option<Duration> {
        queues.filter_map(|queue| Some(self.lapses.get(queue)?.first()?.0)).min()
    }

    /// Whether a lease of these queues has lapsed by this elapsed time.
    pub(crate) fn has_lapsed(&self, wants: &[Want], now: Duration) -> bool {
        let first = self.next_lapse(wants.iter().map(|want| &want.queue));
        first.is_some_and(|at| at <= now + ROUNDING)
    }

    /// What all replicas agree on, ordered by job.
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
