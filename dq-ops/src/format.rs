//! Durations as numbers and as people read them.

use std::time::Duration;

/// Converts to milliseconds; `u64::MAX` for longer durations.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats the two largest units, such as `3 min 5 s` with the units ` d`, ` h`, ` min`, ` s` and
/// ` ms`.
#[must_use]
pub fn duration(millis: u64, units: [&str; 5]) -> String {
    const LENGTHS: [u64; 5] = [86_400_000, 3_600_000, 60_000, 1_000, 1];
    const SECONDS: usize = 3;
    const MILLIS: usize = 4;
    let largest = LENGTHS.iter().position(|length| millis >= *length).unwrap_or(MILLIS);
    let whole = format!("{}{}", millis / LENGTHS[largest], units[largest]);
    // Milliseconds beside seconds are noise.
    if largest >= SECONDS {
        return whole;
    }
    match millis % LENGTHS[largest] / LENGTHS[largest + 1] {
        0 => whole,
        rest => format!("{whole} {rest}{}", units[largest + 1]),
    }
}
