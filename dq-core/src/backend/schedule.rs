//! Questions and answers of schedule, cancel and reschedule.

use crate::model::{Due, JobId, JobRef, Timestamp};

/// Which job is in the store now, and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The job that is in the store: the new one, or the one that stayed.
    pub id: JobId,
    /// When that job is due.
    pub due: Timestamp,
}

/// What became of a job that was scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduled {
    /// It is in the store.
    Created(Receipt),
    /// It is in the store; the one that had its key is gone and never starts.
    Replaced(Receipt),
    /// It was not stored: the receipt names the live job that has its key or id.
    Kept(Receipt),
    /// It was not stored: the receipt names the job that has its key or id and is running now.
    AlreadyRunning(Receipt),
}

impl Scheduled {
    /// The receipt, whatever happened.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        match self {
            Self::Created(receipt)
            | Self::Replaced(receipt)
            | Self::Kept(receipt)
            | Self::AlreadyRunning(receipt) => *receipt,
        }
    }

    /// The job that is in the store.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.receipt().id
    }

    /// When that job is due.
    #[must_use]
    pub const fn due(&self) -> Timestamp {
        self.receipt().due
    }

    /// Whether the job handed in was stored.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        matches!(self, Self::Created(_) | Self::Replaced(_))
    }
}

/// What became of a job that was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It never starts.
    Cancelled,
    /// The store does not know it: never scheduled, finished, or dead.
    NotFound,
    /// A handler has it now; it is not stopped.
    AlreadyRunning,
    /// The wish is recorded, but this backend cannot make it binding in this case.
    Requested,
}

/// A wish to move a job in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reschedule {
    /// Which job.
    pub job: JobRef,
    /// When it shall be due.
    pub due: Due,
}

/// What became of a job that was to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescheduled {
    /// It is due at the new time.
    Moved(Receipt),
    /// The store does not know it: never scheduled, finished, or dead.
    NotFound,
    /// A handler has it now; nothing was changed.
    AlreadyRunning,
}
