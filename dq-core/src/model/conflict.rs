//! Conflict policies for job keys.

use serde::{Deserialize, Serialize};

use super::timestamp::Timestamp;

/// What `schedule` does when a live job already has the key of the new job.
///
/// A live job is one that is scheduled, ready or running. A running job is never replaced; see
/// [`OnRunning`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnConflict {
    /// Keeps the existing job; the new one is not stored.
    #[default]
    Keep,
    /// Replaces the existing job by the new one (debounce).
    Replace,
    /// Keeps the job that is due first; the existing one if both are due at the same time.
    Earliest,
    /// Keeps the job that is due last; the existing one if both are due at the same time.
    Latest,
}

/// What `schedule` does when the job that has the key of the new one is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnRunning {
    /// The new job is not stored: the result is `AlreadyRunning`.
    #[default]
    Refuse,
    /// The running job loses its key, and the new job is stored with it. An event that arrives
    /// during a run then causes another run.
    ///
    /// A job that runs in a drained store keeps its key there. If it is retried, it counts as the job
    /// of that key again.
    Detach,
}

impl OnConflict {
    /// Whether a new job due at `new` replaces the existing one, due at `existing`, if that is not
    /// running.
    #[must_use]
    pub fn replaces(self, existing: Timestamp, new: Timestamp) -> bool {
        match self {
            Self::Keep => false,
            Self::Replace => true,
            Self::Earliest => new < existing,
            Self::Latest => new > existing,
        }
    }
}
