//! Questions and answers of claim and renew: leases.

use std::fmt;
use std::time::Duration;

use crate::model::{Job, JobId, QueueName, Timestamp};

/// Grows with each lease of a job. A store of the user's that remembers the largest token it saw
/// can refuse writes of a handler that lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right to run one job until a deadline that only the store decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Where the job lives.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// Makes older leases of the job worthless.
    pub token: FencingToken,
}

/// What a runner asks for.
#[derive(Debug, Clone, Copy)]
pub struct ClaimParams<'a> {
    /// Queues with free slots, each with how many; served in this order.
    pub wants: &'a [Want],
    /// At most this many jobs in all.
    pub limit: usize,
    /// A label for the operator: who holds the lease.
    pub worker: &'a str,
}

/// How much of one queue is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The queue.
    pub queue: QueueName,
    /// At most this many jobs.
    pub max: usize,
    /// How long each lease lasts from the store's now; at least a millisecond.
    pub lease_for: Duration,
}

/// What a claim brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The leased jobs, oldest due first within each queue.
    pub jobs: Vec<LeasedJob>,
    /// When the same call could return more: the next due time or end of a lease among the wanted
    /// queues. Not after `now` when more is due already. `None` when nothing waits.
    pub next_due: Option<Timestamp>,
    /// The store's clock at the claim, by which `next_due` is to be read.
    pub now: Timestamp,
}

/// One job and the right to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedJob {
    /// The job; its `deliveries` count this lease.
    pub job: Job,
    /// Makes older leases of the job worthless.
    pub token: FencingToken,
    /// When the lease ends, by the store's clock.
    pub leased_until: Timestamp,
}

impl LeasedJob {
    /// The lease, as settle and renew want it.
    #[must_use]
    pub fn lease(&self) -> Lease {
        Lease { queue: self.job.queue.clone(), job: self.job.id, token: self.token }
    }
}

/// A wish to keep a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The lease.
    pub lease: Lease,
    /// How long from the store's now.
    pub lease_for: Duration,
}

/// What became of a lease that was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// It is held until then.
    Until(Timestamp),
    /// It is not held any more.
    Lost,
}
