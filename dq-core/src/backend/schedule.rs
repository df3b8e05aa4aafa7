//! Arguments and results of `schedule`, `cancel` and `reschedule`.

use crate::model::{Due, JobId, JobRef, Timestamp};

/// The id and the due time of a job in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The id of the job.
    pub id: JobId,
    /// When the job is due.
    pub due: Timestamp,
}

/// The result of `schedule` for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may not have been stored, because another job has its key"]
#[non_exhaustive]
pub enum Scheduled {
    /// The job was stored, by this call or by an earlier one with the same id.
    Created(Receipt),
    /// The job was stored. The job that had its key was removed and never starts.
    Replaced(Receipt),
    /// The job was not stored. The receipt is that of the job that already has its key.
    Kept(Receipt),
    /// The job was not stored. The receipt is that of the running job that has its key.
    AlreadyRunning(Receipt),
    /// The job was not stored: a job with this id has ended, and the store remembers it, in the
    /// history of its queue or by [`NewJob::remember`](crate::model::NewJob::remember). It may be the
    /// job of this very call, if the answer to an earlier attempt was lost. The receipt is that of the
    /// ended job.
    Ended(Receipt),
}

impl Scheduled {
    /// The receipt of the job that decided the result: the new one, the existing one, or the ended
    /// one.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        match self {
            Self::Created(receipt)
            | Self::Replaced(receipt)
            | Self::Kept(receipt)
            | Self::AlreadyRunning(receipt)
            | Self::Ended(receipt) => *receipt,
        }
    }

    /// The id of the job of the [receipt](Self::receipt).
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.receipt().id
    }

    /// The due time of the job of the [receipt](Self::receipt).
    #[must_use]
    pub const fn due(&self) -> Timestamp {
        self.receipt().due
    }

    /// Whether the new job was stored.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        matches!(self, Self::Created(_) | Self::Replaced(_))
    }
}

/// The result of `cancel` for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may run nevertheless, because it has already started"]
#[non_exhaustive]
pub enum Cancelled {
    /// The job was removed and never starts.
    Cancelled,
    /// There is no live job with this id or key: it was never scheduled, has finished, or is dead.
    NotFound,
    /// The job is running and is not stopped.
    AlreadyRunning,
}

/// A job and its new due time: an argument of `reschedule`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reschedule {
    /// The job.
    pub job: JobRef,
    /// The new due time.
    pub due: Due,
}

/// The result of `reschedule` for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the job may not have been moved, because it has already started"]
#[non_exhaustive]
pub enum Rescheduled {
    /// The job is due at the new time.
    Moved(Receipt),
    /// There is no live job with this id or key: it was never scheduled, has finished, or is dead.
    NotFound,
    /// The job is running and was not changed.
    AlreadyRunning,
}
