//! The events of a history, and the violations that a check reports.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Cancelled, JobId, JobKey, JobRef, Lease, LeasedJob, QueueName, Renewed, Rescheduled, Scheduled,
    Settled, Settlement, Timestamp,
};

/// The time between the invocation and the return of a call. Positions number all invocations and
/// returns of a history in the order in which they happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Position of the invocation.
    pub invoked: u64,
    /// Position of the return.
    pub returned: u64,
    /// The store's clock at the invocation.
    pub at: Timestamp,
    /// The store's clock at the return.
    pub returned_at: Timestamp,
}

impl Interval {
    /// Whether this call returned before the other was invoked.
    #[must_use]
    pub const fn precedes(&self, other: &Self) -> bool {
        self.returned < other.invoked
    }
}

/// One call about one job, as a client observed it.
#[derive(Debug, Clone)]
pub struct HistoryEvent {
    /// The time during which the call was in flight.
    pub interval: Interval,
    /// The call and its answer.
    pub call: ObservedCall,
}

/// A call about one job. Its answer is `None` if the call failed; it may have taken effect or not.
#[derive(Debug, Clone)]
pub enum ObservedCall {
    /// A job was scheduled.
    Schedule {
        /// Its id.
        job: JobId,
        /// Its queue.
        queue: QueueName,
        /// Its key.
        key: Option<JobKey>,
        /// Whether it was to detach a running job from its key.
        detach: bool,
        /// How long its id stays pinned after its end; zero for not.
        remember: Duration,
        /// The earliest time at which it may start.
        not_before: Timestamp,
        /// Its payload; `None` if it is not known, and not compared.
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
    /// A claim failed; it may have leased jobs that no client knows of.
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
        /// If it was renewed, it lasts at least until then.
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
        /// If it was moved, the earliest time at which it may start.
        not_before: Timestamp,
        /// The answer.
        answer: Option<Rescheduled>,
    },
    /// An operator changed a queue. The answer is not recorded; the call may have failed.
    Operate {
        /// The queue.
        queue: QueueName,
        /// The change.
        action: OperatorAction,
    },
}

/// An operator's change of the jobs of a queue.
#[derive(Debug, Clone)]
pub enum OperatorAction {
    /// Replayed dead jobs.
    Replay {
        /// Their ids.
        jobs: Vec<JobId>,
        /// The earliest time at which they may start.
        not_before: Timestamp,
    },
    /// Removed dead jobs.
    Remove {
        /// Their ids.
        jobs: Vec<JobId>,
    },
    /// Removed all jobs that were not running.
    Purge,
}

/// The promises of the guide (`docs/guide/reliability.md`) that a history can violate, with their
/// numbers there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// 1: no job is lost, none appears that was not scheduled, and each starts with its own payload.
    NothingLost = 1,
    /// 2: no job starts before its due time.
    NeverEarly = 2,
    /// 4: each job has one live lease at a time, and a runner that lost its lease cannot settle it.
    OneLeaseAtATime = 4,
    /// 5: no job starts after it was cancelled or replaced.
    CancelIsBinding = 5,
    /// 6: the store counts failed attempts, and dead jobs do not start unless they are replayed.
    FailuresCounted = 6,
}

/// A proven violation of a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise that was violated.
    pub promise: Promise,
    /// The job.
    pub job: JobId,
    /// What happened to the job, as a sentence without its subject.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: job {}: {}", self.promise as u8, self.job, self.detail)
    }
}
