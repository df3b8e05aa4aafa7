//! Fixed intervals.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The longest interval in milliseconds: a hundred leap years.
const MAX_MS: i64 = 100 * 366 * 24 * 3_600 * 1_000;

/// Fixed interval; it occurs at its multiples since 1970-01-01T00:00Z.
///
/// All processes compute the same times, and a restart changes none. The time of day shifts when
/// the clock changes; use [`Cron`](crate::Cron) for fixed times of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval {
    millis: i64,
}

impl Interval {
    /// Creates an interval; `length` is rounded down to milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Interval`] if `length` is less than a millisecond or more than a hundred years.
    pub fn new(length: Duration) -> Result<Self, Error> {
        match i64::try_from(length.as_millis()) {
            Ok(millis @ 1..=MAX_MS) => Ok(Self { millis }),
            _ => Err(Error::new(
                ErrorKind::Interval,
                format!(
                    "an interval of {length:?} is not possible: it must be between a millisecond \
                     and a hundred years"
                ),
            )),
        }
    }

    /// Returns the interval's length.
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.millis.unsigned_abs())
    }

    pub(crate) fn next_after(&self, time: i64) -> Option<i64> {
        time.div_euclid(self.millis).checked_add(1)?.checked_mul(self.millis)
    }

    /// Returns the last multiple until `time`, inclusive; `None` if it overflows.
    pub(crate) fn last_until(&self, time: i64) -> Option<i64> {
        time.div_euclid(self.millis).checked_mul(self.millis)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every {:#}", jiff::SignedDuration::from_millis(self.millis))
    }
}
