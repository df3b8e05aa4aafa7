//! Events in a trace, and violations.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{JobId, JobKey, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

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

    /// Whether this call may have taken effect before the other.
    pub(super) const fn may_precede(&self, other: &Self) -> bool {
        !other.precedes(self)
    }
}

/// One call about one job, as a client saw it.
#[derive(Debug, Clone)]
pub struct TraceEvent {
    /// When the call was in flight.
    pub interval: Interval,
    /// The call and its answer.
    pub call: ObservedCall,
}

/// A call about one job.
///
/// The answer is `None` if the call failed; it may still have taken effect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ObservedCall {
    /// A job was scheduled.
    Schedule {
        /// The job id.
        job: JobId,
        /// The job's queue.
        queue: QueueName,
        /// The job's key.
        key: Option<JobKey>,
        /// The job's group.
        #[serde(default)]
        group: Option<String>,
        /// Whether it detaches a running job from its key.
        detach: bool,
        /// How long the id stays pinned after the end; zero for no pin.
        remember: Duration,
        /// The earliest start time.
        not_before: Timestamp,
        /// The payload; `None` if unknown, and then not compared.
        payload: Option<Bytes>,
        /// The answer.
        answer: Option<ScheduleAnswer>,
    },
    /// A claim leased a job.
    Claim {
        /// The store's clock at the claim.
        now: Timestamp,
        /// The job id.
        job: JobId,
        /// The job's due time.
        due: Timestamp,
        /// The job's failed attempts.
        attempts: u32,
        /// The job's payload.
        payload: Bytes,
        /// The lease's token.
        token: u64,
        /// When the lease expires.
        until: Timestamp,
    },
    /// A claim failed; it may have leased jobs that no client knows.
    FailedClaim,
    /// A lease was settled.
    Settle {
        /// The job id.
        job: JobId,
        /// The lease's token.
        token: u64,
        /// The verdict.
        verdict: ObservedVerdict,
        /// Whether the store accepted it.
        accepted: Option<bool>,
    },
    /// A lease was renewed.
    Renew {
        /// The job id.
        job: JobId,
        /// The lease's token.
        token: u64,
        /// If the lease was renewed, its expiry; without an answer, the earliest possible one.
        until: Timestamp,
        /// Whether the lease was still held.
        held: Option<bool>,
    },
    /// A job was cancelled.
    Cancel {
        /// The job.
        job: ObservedTarget,
        /// Whether the answer was `Cancelled`.
        cancelled: Option<bool>,
    },
    /// A job was rescheduled.
    Reschedule {
        /// The job.
        job: ObservedTarget,
        /// If the job was moved, its earliest start time.
        not_before: Timestamp,
        /// The moved job, if any.
        moved: Option<Option<JobId>>,
    },
    /// An operator changed a queue; the call may have failed.
    Operate {
        /// The queue.
        queue: QueueName,
        /// The change.
        action: OperatorAction,
    },
}

/// The answer to a schedule call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleAnswer {
    /// The job is stored.
    Created,
    /// The job is stored instead of another.
    Replaced,
    /// The job was stored earlier, and has ended.
    Ended,
    /// Another job was kept.
    Kept,
}

impl ScheduleAnswer {
    pub(super) fn is_stored(self) -> bool {
        matches!(self, Self::Created | Self::Replaced)
    }
}

/// A settlement's verdict, with absolute due times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObservedVerdict {
    /// The job is done.
    Done,
    /// The job is skipped.
    Skip,
    /// The attempt failed, and the next one is due at this time.
    Retry(Timestamp),
    /// The next step is due at this time, with this payload.
    Again(Timestamp, Bytes),
    /// The job is postponed to this time.
    Snooze(Timestamp),
    /// The job is dead.
    Dead,
    /// The job is handed back.
    Release,
}

impl ObservedVerdict {
    /// Whether the job leaves the store.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Done | Self::Skip)
    }
}

/// The target of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObservedTarget {
    /// The job with this id.
    Id(JobId),
    /// The live job with this key.
    Key(QueueName, JobKey),
}

/// An operator's change to a queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
