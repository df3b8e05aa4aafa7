//! A queue's flow: how many of its jobs run at once, and how fast they start.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration::format_exact_duration;
use super::timestamp::Timestamp;
use crate::error::{Error, Result};

const MICROS_PER_MILLI: i64 = 1_000;

/// How many of a queue's jobs run at once, in all and of each group, and how fast they start, in
/// all processes together. Without a value there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Flow {
    /// Maximum number of running jobs; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// Maximum number of running jobs of each [group](crate::NewJob::group); at least 1. Jobs of
    /// full groups wait, and later jobs start before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_max_running: Option<u32>,
    /// How fast jobs start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl Flow {
    /// No limit.
    pub const UNLIMITED: Self = Self { max_running: None, group_max_running: None, rate: None };

    /// Sets [`Self::max_running`].
    #[must_use]
    pub const fn max_running(mut self, max: u32) -> Self {
        self.max_running = Some(max);
        self
    }

    /// Sets [`Self::group_max_running`].
    #[must_use]
    pub const fn group_max_running(mut self, max: u32) -> Self {
        self.group_max_running = Some(max);
        self
    }

    /// Sets [`Self::rate`].
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Returns whether there is any limit.
    pub const fn is_limited(&self) -> bool {
        self.max_running.is_some() || self.group_max_running.is_some() || self.rate.is_some()
    }

    /// Checks the values.
    ///
    /// # Errors
    /// `InvalidInput` if `max_running` or `group_max_running` is 0.
    pub fn validate(&self) -> Result<()> {
        for (name, max) in
            [("max_running", self.max_running), ("group_max_running", self.group_max_running)]
        {
            if max == Some(0) {
                return Err(Error::invalid(format!("{name} is 0; it must be at least 1"))
                    .remedy("to stop the queue, pause it"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [
            self.max_running.map(|max| format!("max_running {max}")),
            self.group_max_running.map(|max| format!("group_max_running {max}")),
            self.rate.map(|rate| format!("rate {rate}")),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        if limits.is_empty() {
            return f.write_str("no limit");
        }
        f.write_str(&limits.join(", "))
    }
}

/// How fast jobs start: so many in a time, evenly spread, after an idle time up to `burst` at once.
///
/// In settings it is a string such as `"100/1m"` or `"10/1s burst 20"`. In any span of that time,
/// at most jobs + burst − 1 start. Without `burst`, as many as 50 ms allow, at least 1.
///
/// ```
/// let rate: dq_core::Rate = "10/1s burst 20".parse()?;
/// assert_eq!(rate.interval(), std::time::Duration::from_millis(100));
/// assert_eq!(rate.to_string(), "10/1s burst 20");
/// # Ok::<(), dq_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    jobs: u32,
    per: Duration,
    burst: u32,
}

/// Shorter intervals would be inexact: a faster queue needs no rate.
const MIN_INTERVAL: Duration = Duration::from_micros(100);

const MAX_PER: Duration = Duration::from_secs(86_400);

const MAX_BURST: u32 = 10_000;

/// Runners start jobs some milliseconds late. With a burst they make up for it.
const DEFAULT_BURST_TIME: Duration = Duration::from_millis(50);

impl Rate {
    /// Creates a rate with the default burst.
    ///
    /// # Errors
    /// `InvalidInput` if `jobs` is 0, `per` is not between 1 ms and 1 day, or that is more than one
    /// job in 100 µs.
    pub fn new(jobs: u32, per: Duration) -> Result<Self> {
        let invalid = |problem: &str| {
            Error::invalid(format!("the rate of {jobs} jobs in {per:?} {problem}"))
                .remedy("write jobs and a time, such as \"10/1s\"; to stop a queue, pause it")
        };
        if jobs == 0 {
            return Err(invalid("lets no job start"));
        }
        if per < Duration::from_millis(1) || per > MAX_PER {
            return Err(invalid("has a time outside 1 ms to 1 day"));
        }
        if per / jobs < MIN_INTERVAL {
            return Err(invalid("is more than 10,000 jobs a second"));
        }
        let mut rate = Self { jobs, per, burst: 1 };
        let burst = DEFAULT_BURST_TIME.as_micros() / rate.interval().as_micros();
        rate.burst = u32::try_from(burst).unwrap_or(MAX_BURST).max(1);
        Ok(rate)
    }

    /// Sets how many jobs start at once after an idle time.
    ///
    /// # Errors
    /// `InvalidInput` if `burst` is not 1 to 10,000.
    pub fn burst(mut self, burst: u32) -> Result<Self> {
        if !(1..=MAX_BURST).contains(&burst) {
            return Err(Error::invalid(format!("the burst is {burst}; it must be 1 to 10,000")));
        }
        self.burst = burst;
        Ok(self)
    }

    /// Creates a rate from its parts, such as stored ones.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::burst`].
    pub fn from_parts(jobs: u32, per: Duration, burst: u32) -> Result<Self> {
        Self::new(jobs, per)?.burst(burst)
    }

    /// Returns the jobs, their time, and the burst.
    pub const fn parts(self) -> (u32, Duration, u32) {
        (self.jobs, self.per, self.burst)
    }

    /// Returns the time between two starts, rounded up to microseconds.
    pub fn interval(self) -> Duration {
        let micros = self.per.as_micros().div_ceil(u128::from(self.jobs));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Returns how many jobs may start at once.
    pub const fn max_burst(self) -> u32 {
        self.burst
    }

    /// Returns how many jobs may start at `now`, after those that `used` has counted.
    pub fn tokens(self, used: RateState, now: Timestamp) -> Tokens {
        let interval = i64::try_from(self.interval().as_micros()).unwrap_or(i64::MAX);
        let now = now.as_millis().saturating_mul(MICROS_PER_MILLI);
        let full = interval.saturating_mul(self.burst.into());
        // Kept in the range also after the clock was set back, or the rate was changed.
        let used_until = used.0.clamp(now, now.saturating_add(full));
        Tokens { interval, used_until, full, now }
    }
}

/// What a rate has used: the time until which its jobs would start one by one, in Unix microseconds
/// (the *theoretical arrival time* of the generic cell rate algorithm). 0 if nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct RateState(pub i64);

/// How many jobs may start now; see [`Rate::tokens`]. All in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    interval: i64,
    /// From `now`, if nothing is used, to `now + full`, if nothing is left.
    used_until: i64,
    /// How long a whole burst takes one by one.
    full: i64,
    now: i64,
}

impl Tokens {
    /// Returns how many jobs may start now.
    pub fn left(self) -> usize {
        self.left_by(self.now)
    }

    /// Returns how many jobs may have started at `time`, which is not earlier than now.
    pub(crate) fn left_at(self, time: Timestamp) -> usize {
        self.left_by(time.as_millis().saturating_mul(MICROS_PER_MILLI))
    }

    fn left_by(self, micros: i64) -> usize {
        let left = micros.saturating_add(self.full).saturating_sub(self.used_until) / self.interval;
        usize::try_from(left).unwrap_or_default()
    }

    /// Returns when the next job may start, if none may now.
    pub fn next(self) -> Timestamp {
        self.nth(1)
    }

    /// Returns when the last of this many jobs may start, if they start as soon as they may.
    pub(crate) fn nth(self, jobs: u64) -> Timestamp {
        let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
        let used_until = self.used_until.saturating_add(self.interval.saturating_mul(jobs));
        millis_up((used_until - self.full).max(self.now))
    }

    /// Returns what is used now, within the rate's range.
    pub(crate) const fn used(self) -> RateState {
        RateState(self.used_until)
    }

    /// Returns the state after this many starts.
    pub fn take(self, jobs: usize) -> RateState {
        let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
        RateState(self.used_until.saturating_add(self.interval.saturating_mul(jobs)))
    }
}

fn millis_up(micros: i64) -> Timestamp {
    Timestamp::from_millis(
        micros.div_euclid(MICROS_PER_MILLI) + i64::from(micros % MICROS_PER_MILLI != 0),
    )
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.jobs, format_exact_duration(self.per))?;
        let default = Self::new(self.jobs, self.per).map(|rate| rate.burst);
        if default.is_ok_and(|default| default != self.burst) {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |problem: &str| {
            Error::invalid(format!("{text:?} is not a rate: {problem}"))
                .remedy("write jobs and a time, such as \"100/1m\" or \"10/1s burst 20\"")
        };
        let (rate, burst) = match text.split_once("burst") {
            Some((rate, burst)) => (rate, Some(burst.trim())),
            None => (text, None),
        };
        let (jobs, per) = rate.split_once('/').ok_or_else(|| invalid("it has no '/'"))?;
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number)
        };
        let jobs = number(jobs.trim()).ok_or_else(|| invalid("it does not begin with a number"))?;
        let per = per.trim();
        // Also `10/s`.
        let is_unit = per.starts_with(|first: char| first.is_ascii_alphabetic());
        let per = humantime::parse_duration(&format!("{}{per}", if is_unit { "1" } else { "" }))
            .map_err(|error| invalid(&format!("{per:?} is not a time: {error}")))?;
        let rate = Self::new(jobs, per)?;
        match burst {
            Some(burst) => {
                rate.burst(number(burst).ok_or_else(|| invalid("its burst is not a number"))?)
            }
            None => Ok(rate),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::Entropy;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn rates_are_read_and_written() {
        for (text, written, micros, burst) in [
            ("100/1m", "100/1m", 600_000, 1),
            (" 10 / 1s  burst 20 ", "10/1s burst 20", 100_000, 20),
            ("10/s", "10/1s", 100_000, 1),
            ("7/1s", "7/1s", 142_858, 1),
            ("1000/1s", "1000/1s", 1_000, 50),
            ("1000/1s burst 50", "1000/1s", 1_000, 50),
            ("10000/1s burst 1", "10000/1s burst 1", 100, 1),
            ("1/1d", "1/1d", 86_400_000_000, 1),
            ("1/1day", "1/1d", 86_400_000_000, 1),
            ("1/1h 1m 1s", "1/1h 1m 1s", 3_661_000_000, 1),
        ] {
            let rate = rate(text);
            assert_eq!(rate.to_string(), written);
            assert_eq!((rate.interval(), rate.max_burst()), (Duration::from_micros(micros), burst));
        }
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        for (text, problem) in [
            ("", "no '/'"),
            ("10", "no '/'"),
            ("ten/1s", "does not begin with a number"),
            ("-1/1s", "does not begin with a number"),
            ("+1/1s", "does not begin with a number"),
            ("10/1", "not a time"),
            ("0/1s", "no job start"),
            ("1/0s", "outside 1 ms to 1 day"),
            ("1/2days", "outside 1 ms to 1 day"),
            ("10001/1s", "more than 10,000 jobs a second"),
            ("10/1s burst", "burst is not a number"),
            ("10/1s burst 0", "the burst is 0"),
            ("10/1s burst 10001", "the burst is 10001"),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        let error = Flow::UNLIMITED.max_running(0).validate().unwrap_err().to_string();
        assert!(error.contains("pause it"), "{error}");
    }

    /// Starts as many jobs as it may at random times: no span of the rate's time has more than
    /// `jobs + burst − 1`.
    #[test]
    fn no_span_has_more_starts_than_the_rate() {
        let entropy = Entropy::seeded(0);
        let random = |range: std::ops::Range<u32>| {
            range.start + (entropy.fraction() * f64::from(range.end - range.start)) as u32
        };
        for _ in 0..200 {
            let (jobs, millis, burst) = (random(1..50), random(10..5_000), random(1..30));
            let rate = Rate::new(jobs, Duration::from_millis(millis.into())).unwrap();
            let rate = rate.burst(burst).unwrap();
            let (mut state, mut now) = (RateState::default(), 1_700_000_000_000);
            let mut starts: Vec<i64> = Vec::new();
            for _ in 0..200 {
                now += i64::from(random(0..2 * millis / jobs + 2));
                let at = Timestamp::from_millis;
                let tokens = rate.tokens(state, at(now));
                let left = tokens.left();
                if left == 0 {
                    let next = tokens.next().as_millis();
                    assert!(next > now && rate.tokens(state, at(next)).left() > 0);
                    assert_eq!(rate.tokens(state, at(next - 1)).left(), 0);
                }
                state = tokens.take(left);
                starts.extend(std::iter::repeat_n(now, left));
            }
            for (index, start) in starts.iter().enumerate() {
                let end = start + i64::from(millis);
                let in_span = starts[index..].iter().take_while(|at| **at < end).count();
                assert!(in_span < (jobs + burst) as usize, "{rate}: {in_span} from {start}");
            }
        }
    }

    #[test]
    fn a_clock_set_back_closes_a_rate_for_its_burst_at_most() {
        let rate = rate("10/1s burst 5");
        let now = Timestamp::from_millis(1_700_000_000_000);
        let state = rate.tokens(RateState::default(), now).take(5);
        let earlier = Timestamp::from_millis(now.as_millis() - 86_400_000);
        let tokens = rate.tokens(state, earlier);
        assert_eq!(tokens.left(), 0);
        assert_eq!(tokens.next().as_millis(), earlier.as_millis() + 100);
    }
}
