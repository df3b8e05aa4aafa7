//! Conflict policy for job keys.

use serde::{Deserialize, Serialize};

use super::timestamp::Timestamp;

/// What `schedule` does when a live job already has the key of the new job.
///
/// A live job is one that is scheduled, ready or running. A running job is never replaced: whatever
/// the policy, the new job is then not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
