//! Leases; arguments and results of `claim` and `renew`.

use std::fmt;
use std::time::Duration;

use crate::model::{Job, JobId, QueueName, Timestamp};

/// A number that grows with each lease of a job.
///
/// An external system that remembers the largest token it has seen can reject writes of a handler
/// whose lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The exclusive right to run a job until the lease ends.
///
/// The store alone decides when that is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The queue of the job.
    pub queue: QueueName,
    /// The id of the job.
    pub job: JobId,
    /// The token of this lease, larger than those of all earlier leases of the job.
    pub token: FencingToken,
}

/// The arguments of `claim`.
#[derive(Debug, Clone, Copy)]
pub struct ClaimParams<'a> {
    /// The queues to claim from, in this order.
    pub wants: &'a [Want],
    /// Maximum number of jobs from all queues together.
    pub limit: usize,
    /// The name of the lease holder, for operators.
    pub worker: &'a str,
}

/// How many jobs [`claim`](super::Backend::claim) may take from one queue, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The queue.
    pub queue: QueueName,
    /// Maximum number of jobs.
    pub max: usize,
    /// Duration of each lease from the store's current time; at least 1 ms.
    pub lease_for: Duration,
}

/// The result of `claim`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The leased jobs; within each queue the oldest due time comes first.
    pub jobs: Vec<LeasedJob>,
    /// When the same call could return more jobs: the next due time or end of a lease in the
    /// claimed queues. Not later than `now` if more jobs are due already; `None` if no job waits or
    /// is leased.
    pub next_due: Option<Timestamp>,
    /// The time by the store's clock, to compare `next_due` with.
    pub now: Timestamp,
}

/// A job and its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedJob {
    /// The job; its `deliveries` include this lease.
    pub job: Job,
    /// The token of this lease, larger than those of all earlier leases of the job.
    pub token: FencingToken,
    /// When the lease ends, by the store's clock.
    pub leased_until: Timestamp,
}

impl LeasedJob {
    /// The lease, as `settle` and `renew` take it.
    #[must_use]
    pub fn lease(&self) -> Lease {
        Lease { queue: self.job.queue.clone(), job: self.job.id, token: self.token }
    }
}

/// A lease and its new duration: an argument of `renew`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The lease.
    pub lease: Lease,
    /// Duration of the lease from the store's current time.
    pub lease_for: Duration,
}

/// The result of `renew` for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease ends at this time, by the store's clock.
    Until(Timestamp),
    /// The lease is no longer held.
    Lost,
}
