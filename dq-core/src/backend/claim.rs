//! Leases, `claim` and `renew`.

use std::fmt;
use std::time::Duration;

use crate::model::{DeadReason, Job, JobId, QueueName, Timestamp};

/// A number that grows with each lease of a job.
///
/// An external system can reject writes with a token below the largest it has seen: their handler
/// lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The exclusive right to run a job until the lease expires, which the store alone decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The job's queue.
    pub queue: QueueName,
    /// The job id.
    pub job: JobId,
    /// The fencing token, larger than the job's earlier ones.
    pub token: FencingToken,
}

/// Arguments of `claim`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ClaimParams<'a> {
    /// The queues to claim from, in this order.
    pub wants: &'a [Want],
    /// Maximum number of jobs from all queues together.
    pub limit: usize,
    /// The lease holder, for operators; see [`JobView::worker`](crate::JobView::worker).
    pub worker: &'a str,
}

impl<'a> ClaimParams<'a> {
    /// Creates the arguments of a claim.
    pub const fn new(wants: &'a [Want], limit: usize, worker: &'a str) -> Self {
        Self { wants, limit, worker }
    }
}

/// A request for jobs from one queue in a [`claim`](super::Backend::claim).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Want {
    /// The queue.
    pub queue: QueueName,
    /// Maximum number of jobs.
    pub max: usize,
    /// How many of them would start at once. A queue with a [`Flow`](crate::Flow) gives no more,
    /// unless half of its room stays free, and half of the limit of each job's group.
    pub starting: usize,
    /// Lease duration from the store's current time; at least 1 ms.
    pub lease_for: Duration,
}

impl Want {
    /// Requests at most `max` jobs from `queue`, which start at once, each leased for `lease_for`.
    pub const fn new(queue: QueueName, max: usize, lease_for: Duration) -> Self {
        Self { queue, max, starting: max, lease_for }
    }

    setters!(starting: usize);
}

/// The result of `claim`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimed {
    /// The leased jobs; within a queue, the earliest due time comes first.
    pub jobs: Vec<LeasedJob>,
    /// When the same call could return more jobs: the next due time, lease expiry, end of a
    /// reservation or start by a rate in the claimed queues, except paused ones. `None` if no time
    /// is known.
    pub next_due: Option<Timestamp>,
    /// The store's time, to compare with `next_due`.
    pub now: Timestamp,
    /// Jobs that became dead since this process's last claim because the store cannot read them.
    /// Unreadable fields have default values. Runners report these jobs to observers.
    pub quarantined: Vec<(Job, DeadReason)>,
}

impl Claimed {
    /// Creates a result without quarantined jobs.
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
    /// The fencing token, larger than the job's earlier ones.
    pub token: FencingToken,
    /// When the lease expires, by the store's clock.
    pub leased_until: Timestamp,
}

impl LeasedJob {
    /// Creates a leased job.
    pub const fn new(job: Job, token: FencingToken, leased_until: Timestamp) -> Self {
        Self { job, token, leased_until }
    }

    /// Returns the lease, for `settle` and `renew`.
    pub fn lease(&self) -> Lease {
        Lease { queue: self.job.queue.clone(), job: self.job.id, token: self.token }
    }
}

/// An argument of `renew`: a lease and its new duration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The lease.
    pub lease: Lease,
    /// Lease duration from the store's current time.
    pub lease_for: Duration,
}

impl Renewal {
    /// Creates a renewal.
    pub const fn new(lease: Lease, lease_for: Duration) -> Self {
        Self { lease, lease_for }
    }
}

/// Result of `renew` for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// The lease expires at this time, by the store's clock.
    Until(Timestamp),
    /// The lease is no longer held.
    LostLease,
}
