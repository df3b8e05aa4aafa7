//! A queue operation read from a log.

use crate::backend::Operation;
use crate::model::{Due, JobId};

/// An owned [`Operation`], without its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedOperation {
    /// See [`Operation::Replay`].
    Replay {
        /// Ids of dead jobs.
        jobs: Vec<JobId>,
        /// The new due time.
        due: Due,
    },
    /// See [`Operation::Remove`].
    Remove {
        /// Ids of dead jobs.
        jobs: Vec<JobId>,
    },
    /// See [`Operation::Pause`].
    Pause,
    /// See [`Operation::Resume`].
    Resume,
    /// See [`Operation::Purge`].
    Purge,
}

impl From<Operation<'_>> for OwnedOperation {
    fn from(operation: Operation<'_>) -> Self {
        match operation {
            Operation::Replay { jobs, due, .. } => Self::Replay { jobs: jobs.to_vec(), due },
            Operation::Remove { jobs, .. } => Self::Remove { jobs: jobs.to_vec() },
            Operation::Pause { .. } => Self::Pause,
            Operation::Resume { .. } => Self::Resume,
            Operation::Purge { .. } => Self::Purge,
        }
    }
}
