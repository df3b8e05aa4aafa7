//! Conflict policy for keys: what happens when a live job already has the key.

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// What `schedule` does when a live job already has the key of the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Keeps the present job; the new one is not stored.
    #[default]
    Keep,
    /// Replaces the present job: new payload, new due time (debounce).
    Replace,
    /// Keeps the job that is due first, with its payload; the present one if equal.
    Earliest,
    /// Keeps the job that is due last, with its payload; the present one if equal.
    Latest,
}

impl OnConflict {
    /// Whether a new job due at `new` replaces the present one, due at `present`.
    #[must_use]
    pub fn replaces(self, present: Timestamp, new: Timestamp) -> bool {
        match self {
            Self::Keep => false,
            Self::Replace => true,
            Self::Earliest => new < present,
            Self::Latest => new > present,
        }
    }
}
