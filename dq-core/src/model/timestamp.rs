//! Times and durations, in Unix milliseconds.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A point in time, in milliseconds since 1970-01-01T00:00:00Z.
///
/// Millisecond conversions are exact. Conversions from finer units round *up*, so that a job never
/// becomes due early.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// The latest point in time, after any accepted due time.
    pub const MAX: Self = Self(i64::MAX);

    /// Creates a timestamp `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns milliseconds since the epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns `self + delay`, rounded up to a millisecond and saturating at [`Self::MAX`].
    pub fn saturating_add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(ceil_millis(delay)))
    }

    /// Returns the time since `earlier`; zero if `self` is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }
}

/// Returns a delay in milliseconds, rounded up and saturating.
fn ceil_millis(delay: Duration) -> i64 {
    let millis = delay.as_nanos().div_ceil(1_000_000);
    i64::try_from(millis).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(ceil_millis(after)),
            Err(before) => {
                let millis = before.duration().as_millis();
                Self(i64::try_from(millis).map_or(i64::MIN, |millis| -millis))
            }
        }
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, delay: Duration) -> Self {
        self.saturating_add(delay)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, delay: Duration) -> Self {
        Self(self.0.saturating_sub(ceil_millis(delay)))
    }
}

impl fmt::Display for Timestamp {
    /// Prints RFC 3339 in UTC with milliseconds; outside the years 1970 to 9999, plain
    /// milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // humantime only formats the years 1970 to 9999.
        const LAST: i64 = 253_402_300_799_999;
        if (0..=LAST).contains(&self.0) {
            let time = UNIX_EPOCH + Duration::from_millis(self.0.unsigned_abs());
            humantime::format_rfc3339_millis(time).fmt(f)
        } else {
            write!(f, "{}ms", self.0)
        }
    }
}

/// 1971-01-01T00:00:00Z.
const START_OF_1971: Timestamp = Timestamp(365 * 86_400_000);

/// A due time: a point in time or a delay.
///
/// The store's clock, if any, resolves delays, so a caller's wrong clock cannot make a job fire
/// early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// At this point in time; at once if it has passed.
    At(Timestamp),
    /// This long after the store receives the call.
    After(Duration),
}

impl Due {
    /// Due at once.
    pub const NOW: Self = Self::After(Duration::ZERO);

    /// Returns the due time when the store's clock shows `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::After(delay) => now + delay,
        }
    }

    /// Checks that the due time is not before the epoch and at most `horizon` after `now`.
    ///
    /// Also refuses 1970, where current Unix seconds taken for milliseconds fall, except
    /// [`Timestamp::EPOCH`], or if `now` is before 1971.
    ///
    /// # Errors
    /// `InvalidInput` if the due time is out of range.
    pub fn validate(self, now: Timestamp, horizon: Duration) -> Result<()> {
        let at = self.resolve(now);
        if at < Timestamp::EPOCH {
            return Err(Error::invalid(format!(
                "the due time {} ms is before 1970-01-01",
                at.as_millis()
            ))
            .remedy("due times are Unix milliseconds; was a difference passed instead?"));
        }
        if at > Timestamp::EPOCH && at < START_OF_1971 && now >= START_OF_1971 {
            return Err(Error::invalid(format!("the due time {at} is in the year 1970")).remedy(
                "due times are Unix milliseconds; was it given in seconds? for a job that is due \
                 at once, give no due time",
            ));
        }
        if at > now + horizon {
            let days = horizon.as_secs() / 86_400;
            return Err(Error::invalid(format!(
                "the due time {at} is more than {days} days ahead"
            ))
            .remedy("was the time given in microseconds or nanoseconds instead of milliseconds?"));
        }
        Ok(())
    }
}

/// A possible due time: a `Duration` from now, [`Timestamp`], `SystemTime` or [`Due`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a delay or a point in time",
    label = "expected a `Duration`, a `Timestamp`, a `SystemTime` or a `Due`",
    note = "write `60.seconds()`, or a `Timestamp`"
)]
pub trait IntoDue: Into<Due> {}

#[diagnostic::do_not_recommend]
impl<T: Into<Due>> IntoDue for T {}

impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Self {
        Self::At(at)
    }
}

impl From<SystemTime> for Due {
    fn from(at: SystemTime) -> Self {
        Self::At(at.into())
    }
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Self {
        Self::After(delay)
    }
}

/// Durations from integers: `15.minutes()` instead of `Duration::from_secs(15 * 60)`.
///
/// Results too large for a `Duration` saturate.
///
/// # Panics
/// All methods panic for a negative number.
pub trait DurationExt: Sized {
    /// This many milliseconds.
    fn millis(self) -> Duration;
    /// This many seconds.
    fn seconds(self) -> Duration;
    /// This many minutes.
    fn minutes(self) -> Duration;
    /// This many hours.
    fn hours(self) -> Duration;
    /// This many days of 24 hours.
    fn days(self) -> Duration;
}

macro_rules! durations_from {
    ($($integer:ty),*) => {$(
        impl DurationExt for $integer {
            #[track_caller]
            fn millis(self) -> Duration {
                Duration::from_millis(count(self))
            }

            #[track_caller]
            fn seconds(self) -> Duration {
                Duration::from_secs(count(self))
            }

            #[track_caller]
            fn minutes(self) -> Duration {
                Duration::from_secs(count(self).saturating_mul(60))
            }

            #[track_caller]
            fn hours(self) -> Duration {
                Duration::from_secs(count(self).saturating_mul(3_600))
            }

            #[track_caller]
            fn days(self) -> Duration {
                Duration::from_secs(count(self).saturating_mul(86_400))
            }
        }
    )*};
}

// `i32` is the type of an untyped literal.
durations_from!(u8, u16, u32, u64, usize, i32, i64);

#[track_caller]
fn count<T: TryInto<u64> + Copy + fmt::Display>(number: T) -> u64 {
    match number.try_into() {
        Ok(count) => count,
        Err(_) => panic!("a duration cannot be negative, and {number} is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_millisecond_round_up_and_text_is_rfc3339() {
        assert_eq!((Timestamp(10) + Duration::from_micros(1)).as_millis(), 11);
        assert_eq!(Timestamp::from(UNIX_EPOCH + Duration::from_nanos(1_000_001)).as_millis(), 2);
        assert_eq!(Timestamp(1_700_000_000_123).to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(Timestamp(-3).to_string(), "-3ms");
    }

    #[test]
    fn seconds_in_place_of_milliseconds_are_refused() {
        let now = Timestamp(1_700_000_000_000);
        let check = |millis, now| Due::At(Timestamp(millis)).validate(now, 1.days());
        for seconds in [1, 1_700_000_000, START_OF_1971.0 - 1] {
            assert!(check(seconds, now).is_err(), "{seconds}");
            assert!(check(seconds, Timestamp(seconds)).is_ok(), "a clock without date");
        }
        for valid in [0, START_OF_1971.0, 1_600_000_000_000] {
            assert!(check(valid, now).is_ok(), "{valid}");
        }
    }

    #[test]
    fn durations_saturate() {
        assert_eq!(u64::MAX.days(), Duration::from_secs(u64::MAX));
    }

    #[test]
    #[should_panic(expected = "a duration cannot be negative, and -5 is")]
    fn a_negative_number_of_days_is_no_duration() {
        let _ = (-5).days();
    }
}
