//! Fixed intervals.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// A hundred years in milliseconds, of the longest length of a year.
const MAX_MS: i64 = 100 * 366 * 24 * 3_600 * 1_000;

/// A fixed interval: its occurrences are the whole multiples of its length since 1970-01-01T00:00Z.
///
/// So the times depend on nothing but the length: all processes compute the same times, and a
/// restart changes none. Its times of the day vary where the clock changes; use
/// [`Cron`](crate::Cron) for fixed times of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval {
    millis: i64,
}

impl Interval {
    /// An interval of this length, which is rounded down to milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Interval`] if the length is less than a millisecond or more than a hundred
    /// years.
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

    /// The length of the interval.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.millis.unsigned_abs())
    }

    /// The first occurrence after this time; `None` if it is too late for an `i64`.
    pub(crate) fn next_after(&self, time: i64) -> Option<i64> {
        time.div_euclid(self.millis).checked_add(1)?.checked_mul(self.millis)
    }

    /// The last occurrence at or before this time; `None` if it is too early for an `i64`.
    pub(crate) fn last_until(&self, time: i64) -> Option<i64> {
        time.div_euclid(self.millis).checked_mul(self.millis)
    }
}

/// As `every 1m 30s`.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every {:#}", jiff::SignedDuration::from_millis(self.millis))
    }
}
