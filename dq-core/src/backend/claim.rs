//! Leases; arguments and results of `claim` and `renew`.

use std::fmt;
use std::time::Duration;

use crate::model::{DeadReason, Job, JobId, QueueName, Timestamp};

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
#[non_exhaustive]
pub struct ClaimParams<'a> {
    /// The queues to claim from, in this order.
    pub wants: &'a [Want],
    /// Maximum number of jobs from all queues together.
    pub limit: usize,
    /// The name of the lease holder, for operators; see
    /// [`JobView::worker`](crate::JobView::worker).
    pub worker: &'a str,
}

impl<'a> ClaimParams<'a> {
    /// Creates the arguments of a claim.
    #[must_use]
    pub const fn new(wants: &'a [Want], limit: usize, worker: &'a str) -> Self {
        Self { wants, limit, worker }
    }
}

/// How many jobs [`claim`](super::Backend::claim) may take from one queue, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Want {
    /// The queue.
    pub queue: QueueName,
    /// Maximum number of jobs.
    pub max: usize,
    /// Duration of each lease from the store's current time; at least 1 ms.
    pub lease_for: Duration,
}

impl Want {
    /// Creates a request for at most `max` jobs of `queue`, each leased for `lease_for`.
    #[must_use]
    pub const fn new(queue: QueueName, max: usize, lease_for: Duration) -> Self {
        Self { queue, max, lease_for }
    }
}

/// The result of `claim`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimed {
    /// The leased jobs; within each queue the oldest due time comes first.
    pub jobs: Vec<LeasedJob>,
    /// When the same call could return more jobs: the next due time or lease expiry in the claimed
    /// queues that are not paused. At or before `now` if more jobs can be claimed already. A job that
    /// is reserved for another claimer counts from the end of the reservation. `None` if no job waits
    /// or is leased there.
    pub next_due: Option<Timestamp>,
    /// The time by the store's clock, to compare `next_due` with.
    pub now: Timestamp,
    /// Jobs that the store made dead since this process's last claim because it cannot read them:
    /// another program wrote or damaged them. Unreadable fields have default values. Runners report
    /// them to their observers; a crash loses the report.
    pub quarantined: Vec<(Job, DeadReason)>,
}

impl Claimed {
    /// Creates the result of a claim, without quarantined jobs.
    #[must_use]
    pub const fn new(jobs: Vec<LeasedJob>, next_due: Option<Timestamp>, now: Timestamp) -> Self {
        Self { jobs, next_due, now, quarantined: Vec::new() }
    }
}

/// A job and its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasedJob {
    /// The job; its `deliveries` include this lease.
    pub job: Job,
    /// The token of this lease, larger than those of all earlier leases of the job.
    pub token: FencingToken,
    /// When the lease ends, by the store's clock.
    pub leased_until: Timestamp,
}

impl LeasedJob {
    /// Creates a leased job.
    #[must_use]
    pub const fn new(job: Job, token: FencingToken, leased_until: Timestamp) -> Self {
        Self { job, token, leased_until }
    }

    /// The lease, as `settle` and `renew` take it.
    #[must_use]
    pub fn lease(&self) -> Lease {
        Lease { queue: self.job.queue.clone(), job: self.job.id, token: self.token }
    }
}

/// A lease and its new duration: an argument of `renew`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The lease.
    pub lease: Lease,
    /// Duration of the lease from the store's current time.
    pub lease_for: Duration,
}

impl Renewal {
    /// Creates a renewal.
    #[must_use]
    pub const fn new(lease: Lease, lease_for: Duration) -> Self {
        Self { lease, lease_for }
    }
}

/// The result of `renew` for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// The lease ends at this time, by the store's clock.
    Until(Timestamp),
    /// The lease is no longer held.
    Lost,
}
