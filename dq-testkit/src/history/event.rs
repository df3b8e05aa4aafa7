//! Events in a trace, and violations.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Cancelled, JobId, JobKey, JobRef, Lease, LeasedJob, QueueName, Renewed, Rescheduled, Scheduled,
    Settled, Settlement, Timestamp,
};

/// The time between a call's invocation and its return.
///
/// Positions number all invocations and returns in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The invocation's position.
    pub invoked: u64,
    /// The return's position.
    pub returned: u64,
    /// The store's clock at the invocation.
    pub at: Timestamp,
    /// The store's clock at the return.
    pub returned_at: Timestamp,
}

impl Interval {
    /// Returns whether this call returned before the other began.
    #[must_use]
    pub const fn precedes(&self, other: &Self) -> bool {
        self.returned < other.invoked
    }
}

/// One call about one job, as a client saw it.
#[derive(Debug, Clone)]
pub struct HistoryEvent {
    /// When the call was in flight.
    pub interval: Interval,
    /// The call and its answer.
    pub call: ObservedCall,
}

/// A call about one job.
///
/// The answer is `None` if the call failed; it may still have taken effect.
#[derive(Debug, Clone)]
pub enum ObservedCall {
    /// A job was scheduled.
    Schedule {
        /// The job id.
        job: JobId,
        /// The job's queue.
        queue: QueueName,
        /// The job's key.
        key: Option<JobKey>,
        /// Whether it detaches a running job from its key.
        detach: bool,
        /// How long the id stays pinned after the end; zero for no pin.
        remember: Duration,
        /// The earliest start time.
        not_before: Timestamp,
        /// The payload; `None` if unknown, and then not compared.
        payload: Option<Bytes>,
        /// The answer.
        answer: Option<Scheduled>,
    },
    /// A claim leased a job.
    Claim {
        /// The job and its lease.
        leased: Box<LeasedJob>,
        /// The store's clock at the claim.
        now: Timestamp,
    },
    /// A claim failed; it may have leased jobs that no client knows.
    FailedClaim,
    /// A lease was settled.
    Settle {
        /// The lease and the verdict.
        settlement: Settlement,
        /// The answer.
        answer: Option<Settled>,
    },
    /// A lease was renewed.
    Renew {
        /// The lease.
        lease: Lease,
        /// If the lease was renewed, its minimum expiry.
        until: Timestamp,
        /// The answer.
        answer: Option<Renewed>,
    },
    /// A job was cancelled.
    Cancel {
        /// The job, by id or key.
        job: JobRef,
        /// The answer.
        answer: Option<Cancelled>,
    },
    /// A job was rescheduled.
    Reschedule {
        /// The job, by id or key.
        job: JobRef,
        /// If the job was moved, its earliest start time.
        not_before: Timestamp,
        /// The answer.
        answer: Option<Rescheduled>,
    },
    /// An operator changed a queue; the call may have failed.
    Operate {
        /// The queue.
        queue: QueueName,
        /// The change.
        action: OperatorAction,
    },
}

/// An operator's change to a queue.
#[derive(Debug, Clone)]
pub enum OperatorAction {
    /// Replayed dead jobs.
    Replay {
        /// The job ids.
        jobs: Vec<JobId>,
        /// The earliest start time.
        not_before: Timestamp,
    },
    /// Removed dead jobs.
    Remove {
        /// The job ids.
        jobs: Vec<JobId>,
    },
    /// Removed all jobs except running ones.
    Purge,
}

/// The promises that a trace can violate, with their numbers in the guide
/// (`docs/guide/reliability.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// 1: no job is lost, only scheduled jobs appear, and each starts with its own payload.
    NothingLost = 1,
    /// 2: no job starts before its due time.
    NeverEarly = 2,
    /// 4: a job has one held lease at a time, and a runner that has lost the lease cannot settle
    /// it.
    OneLeaseAtATime = 4,
    /// 5: no job starts after it was cancelled or replaced.
    CancelIsBinding = 5,
    /// 6: the store counts failed attempts, and a dead job starts only after a replay.
    FailuresCounted = 6,
}

/// A proven violation of a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The violated promise.
    pub promise: Promise,
    /// The job.
    pub job: JobId,
    /// What happened to the job: a sentence without its subject.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: job {}: {}", self.promise as u8, self.job, self.detail)
    }
}
