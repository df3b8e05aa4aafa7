//! Durations as numbers.

use std::time::Duration;

/// Converts to milliseconds; `u64::MAX` for longer durations.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
