//! Which queue's jobs start first in a runner.

use serde::{Deserialize, Serialize};

/// A queue's level in a runner; see
/// [`QueueSettings::priority`](crate::config::QueueSettings::priority).
///
/// In settings: `"high"`, `"normal"` or `"low"`. The levels are ordered by who starts first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Before the other levels.
    High,
    /// The default.
    #[default]
    Normal,
    /// After the other levels.
    Low,
}
