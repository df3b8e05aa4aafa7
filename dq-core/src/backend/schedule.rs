//! Arguments and results of `schedule`, `cancel` and `reschedule`.

use crate::model::{Due, JobId, JobRef, Timestamp};

/// A stored job's id and due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The job id.
    pub id: JobId,
    /// The due time.
    pub due: Timestamp,
}

/// Result of `schedule` for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may not have been stored, because another job has its key"]
#[non_exhaustive]
pub enum Scheduled {
    /// The job was stored, by this call or an earlier one with the same id.
    Created(Receipt),
    /// The job was stored. The job that had its key was removed and never starts.
    Replaced(Receipt),
    /// The job was not stored; a job with its key, whose receipt this is, stays.
    Kept(Receipt),
    /// The job was not stored; a running job with its key, whose receipt this is, continues.
    AlreadyRunning(Receipt),
    /// The job was not stored: a job with this id, whose receipt this is, has ended, and the store
    /// remembers it. If the reply to an earlier attempt was lost, it may be your own job.
    Ended(Receipt),
}

impl Scheduled {
    /// Returns the receipt of the new, existing or ended job.
    pub const fn receipt(&self) -> Receipt {
        match self {
            Self::Created(receipt)
            | Self::Replaced(receipt)
            | Self::Kept(receipt)
            | Self::AlreadyRunning(receipt)
            | Self::Ended(receipt) => *receipt,
        }
    }

    /// Returns the job id in the [receipt](Self::receipt).
    pub const fn id(&self) -> JobId {
        self.receipt().id
    }

    /// Returns the due time in the [receipt](Self::receipt).
    pub const fn due(&self) -> Timestamp {
        self.receipt().due
    }

    /// Returns whether the new job was stored.
    pub const fn is_stored(&self) -> bool {
        matches!(self, Self::Created(_) | Self::Replaced(_))
    }
}

/// Result of `cancel` for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may run nevertheless, because it has already started"]
#[non_exhaustive]
pub enum Cancelled {
    /// The job was removed and never starts.
    Cancelled,
    /// No live job has this id or key: never scheduled, finished, or dead.
    NotFound,
    /// The job is running and continues.
    AlreadyRunning,
}

/// An argument of `reschedule`: a job and its new due time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reschedule {
    /// The job.
    pub job: JobRef,
    /// The new due time.
    pub due: Due,
}

/// Result of `reschedule` for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may not have been moved, because it has already started"]
#[non_exhaustive]
pub enum Rescheduled {
    /// The job is due at the new time.
    Moved(Receipt),
    /// No live job has this id or key: never scheduled, finished, or dead.
    NotFound,
    /// The job is running and did not change.
    AlreadyRunning,
}
