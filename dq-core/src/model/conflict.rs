//! Conflict policies for job keys.

use serde::{Deserialize, Serialize};

use super::timestamp::Timestamp;

/// The `schedule` policy for a live job with the same key.
///
/// A running job is never replaced; see [`OnRunning`].
// Append new variants at the end: RabbitMQ's log stores them by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnConflict {
    /// Keeps the existing job and does not store the new one.
    #[default]
    Keep,
    /// Replaces the existing job (debounce).
    Replace,
    /// Keeps the earlier job; the existing one if both are due at the same time.
    Earliest,
    /// Keeps the later job; the existing one if both are due at the same time.
    Latest,
}

/// The `schedule` policy for a running job with the same key.
// Append new variants at the end: RabbitMQ's log stores them by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnRunning {
    /// Does not store the new job; the result is `AlreadyRunning`.
    #[default]
    Refuse,
    /// Moves the key from the running job to the new one and stores that.
    ///
    /// So an event during a run causes another run. A job in a drained store keeps its key, and
    /// counts as the key's job again if it is retried.
    Detach,
}

impl OnConflict {
    /// Returns whether a new job due at `new` replaces an existing one due at `existing` that is
    /// not running.
    pub fn replaces(self, existing: Timestamp, new: Timestamp) -> bool {
        match self {
            Self::Keep => false,
            Self::Replace => true,
            Self::Earliest => new < existing,
            Self::Latest => new > existing,
        }
    }
}
