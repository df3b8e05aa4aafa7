//! When a job recurs.

use std::fmt;

use crate::cron::Cron;
use crate::interval::Interval;

/// When a job recurs: by a cron expression or at a fixed interval.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Times {
    /// Times of a cron expression.
    Cron(Cron),
    /// Multiples of an interval.
    Interval(Interval),
}

impl Times {
    /// Returns the first occurrence after `time`, if there is one.
    ///
    /// Both are in milliseconds since 1970-01-01T00:00Z. An expression with years has a last
    /// occurrence.
    pub fn next_after(&self, time: i64) -> Option<i64> {
        match self {
            Self::Cron(cron) => cron.next_after(time),
            Self::Interval(interval) => interval.next_after(time),
        }
    }

    /// Returns the last occurrence after `after` and until `until`, inclusive.
    ///
    /// All are in milliseconds since 1970-01-01T00:00Z. A cron expression needs a binary search
    /// with about forty [`next_after`](Self::next_after) calls, however many occurrences there are.
    pub fn last_between(&self, after: i64, until: i64) -> Option<i64> {
        if let Self::Interval(interval) = self {
            return interval.last_until(until).filter(|last| *last > after);
        }
        let first = self.next_after(after).filter(|first| *first <= until)?;
        // Works because `next_after` never decreases. Invariant: `known` is an occurrence, and no
        // occurrence lies after `end` and at or before `until`.
        let (mut known, mut end) = (first, until);
        while known < end {
            let middle = known.midpoint(end);
            match self.next_after(middle).filter(|next| *next <= end) {
                Some(next) => known = next,
                None => end = middle,
            }
        }
        Some(known)
    }
}

impl From<Cron> for Times {
    fn from(cron: Cron) -> Self {
        Self::Cron(cron)
    }
}

impl From<Interval> for Times {
    fn from(interval: Interval) -> Self {
        Self::Interval(interval)
    }
}

/// For example `30 2 * * * Europe/Stockholm` or `every 1m 30s`.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron(cron) => cron.fmt(f),
            Self::Interval(interval) => interval.fmt(f),
        }
    }
}
