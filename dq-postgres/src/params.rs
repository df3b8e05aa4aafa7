//! Converts values to parameters.

use std::time::Duration;

use dq_core::{Due, FencingToken, JobId, Timestamp};
use uuid::Uuid;

/// In milliseconds. Far below `i64::MAX`, because the server adds its time.
const MAX_DURATION: i64 = i64::MAX / 4;

pub(crate) fn uuid(id: JobId) -> Uuid {
    Uuid::from_bytes(id.to_bytes())
}

pub(crate) fn job_id(id: Uuid) -> JobId {
    JobId::from_bytes(id.into_bytes())
}

/// Milliseconds, and whether they are a delay, which the server adds to its time.
pub(crate) fn due(due: Due) -> (i64, bool) {
    match due {
        Due::At(at) => (at.as_millis(), false),
        // Resolved at 0, the due time is the delay.
        Due::After(_) => (due.resolve(Timestamp::EPOCH).as_millis().min(MAX_DURATION), true),
    }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).map_or(MAX_DURATION, |millis| millis.min(MAX_DURATION))
}

pub(crate) fn count(number: usize) -> i32 {
    // The server adds one to some.
    i32::try_from(number).map_or(i32::MAX - 1, |number| number.min(i32::MAX - 1))
}

/// A fencing token; -1, which was never issued, for a larger one than the server issues.
pub(crate) fn token(token: FencingToken) -> i64 {
    i64::try_from(token.0).unwrap_or(-1)
}

/// Text without NUL, which PostgreSQL cannot store.
pub(crate) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_so_that_no_job_is_early() {
        for (micros, millis) in [(1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(due(Due::After(Duration::from_micros(micros))), (millis, true));
        }
    }
}
