//! When a job recurs.

use std::fmt;

use crate::cron::Cron;
use crate::interval::Interval;

/// When a job recurs: at the times of a cron expression, or after a fixed interval.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recurrence {
    /// At the times of a cron expression.
    Cron(Cron),
    /// At the multiples of an interval.
    Interval(Interval),
}

impl Recurrence {
    /// The first occurrence after this time, both in milliseconds since 1970-01-01T00:00Z. `None` if
    /// there is no later one, as after the last year of an expression that names years.
    #[must_use]
    pub fn next_after(&self, time: i64) -> Option<i64> {
        match self {
            Self::Cron(cron) => cron.next_after(time),
            Self::Interval(interval) => interval.next_after(time),
        }
    }

    /// The last occurrence at or before `until`, if it is after `after`, in milliseconds since
    /// 1970-01-01T00:00Z.
    ///
    /// Of a cron expression, a binary search over the milliseconds between the two times: about forty
    /// calls of [`next_after`](Self::next_after), however many occurrences there are. Of an interval, one
    /// division.
    #[must_use]
    pub fn last_between(&self, after: i64, until: i64) -> Option<i64> {
        if let Self::Interval(interval) = self {
            return interval.last_until(until).filter(|last| *last > after);
        }
        let first = self.next_after(after).filter(|first| *first <= until)?;
        // `next_after` never decreases, so a binary search finds the latest time after which there
        // is still an occurrence until `until`. Invariant: `known` is an occurrence, and none that
        // is at or before `until` is after `end`.
        let (mut known, mut end) = (first, until);
        while known < end {
            let middle = known + (end - known) / 2;
            match self.next_after(middle).filter(|next| *next <= end) {
                Some(next) => known = next,
                None => end = middle,
            }
        }
        Some(known)
    }
}

impl From<Cron> for Recurrence {
    fn from(cron: Cron) -> Self {
        Self::Cron(cron)
    }
}

impl From<Interval> for Recurrence {
    fn from(interval: Interval) -> Self {
        Self::Interval(interval)
    }
}

/// As `30 2 * * * Europe/Stockholm` or `every 1m 30s`.
impl fmt::Display for Recurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron(cron) => cron.fmt(f),
            Self::Interval(interval) => interval.fmt(f),
        }
    }
}
