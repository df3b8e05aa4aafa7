//! Lateness objectives: whether a queue misses one, and why.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::duration::format_exact_duration;
use super::queue::QueueName;
use crate::error::{Error, Result};

/// 100%, in thousandths of a percent.
const WHOLE: u32 = 100_000;

/// A lateness objective: the share of jobs that must start within a time after they are due.
///
/// In settings it is a string such as `"99% < 100ms"`.
///
/// ```
/// use dq_core::LatenessObjective;
///
/// let objective: LatenessObjective = "99.9% < 2s".parse()?;
/// assert_eq!(objective.within(), std::time::Duration::from_secs(2));
/// assert_eq!(objective.to_string(), "99.9% < 2s");
/// # Ok::<(), dq_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LatenessObjective {
    /// The share in thousandths of a percent, so that comparisons are exact.
    share: u32,
    /// Jobs must start less than this after their due time.
    within: Duration,
}

impl LatenessObjective {
    /// Returns the first lateness that is too late.
    pub const fn within(self) -> Duration {
        self.within
    }

    /// Returns whether a start this long after the due time is late.
    pub fn is_late(self, lateness: Duration) -> bool {
        lateness >= self.within
    }

    /// Returns whether too few jobs were in time.
    fn is_missed(self, in_time: u64, late: u64) -> bool {
        let all = u128::from(in_time) + u128::from(late);
        u128::from(in_time) * u128::from(WHOLE) < all * u128::from(self.share)
    }
}

impl fmt::Display for LatenessObjective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, within) =
            (f64::from(self.share) / 1_000.0, format_exact_duration(self.within));
        write!(f, "{percent}% < {within}")
    }
}

impl FromStr for LatenessObjective {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|problem| {
            Error::invalid(format!("{text:?} is not a lateness objective: {problem}"))
                .remedy("write a share of the jobs and a time, such as \"99% < 100ms\"")
        })
    }
}

fn parse(text: &str) -> Result<LatenessObjective, String> {
    let (percent, within) = text.split_once('<').ok_or("it has no '<'")?;
    let percent =
        percent.trim_end().strip_suffix('%').ok_or("the share does not end with '%'")?.trim();
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_digits = |text: &str| {
        (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    // Up to six digits always fit.
    let share = format!("{whole}{decimals:0<3}").parse();
    let Some(share) = share.ok().filter(|_| is_digits(whole) && is_digits(decimals)) else {
        return Err(format!("{percent:?} is not a number with at most three decimals"));
    };
    if !(1..=WHOLE).contains(&share) {
        return Err("the share must be more than 0% and at most 100%".to_owned());
    }
    let within = within.trim();
    let within = humantime::parse_duration(within)
        .map_err(|error| format!("{within:?} is not a time: {error}"))?;
    if within < Duration::from_millis(1) {
        return Err("the time is less than 1ms".to_owned());
    }
    Ok(LatenessObjective { share, within })
}

impl TryFrom<String> for LatenessObjective {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<LatenessObjective> for String {
    fn from(objective: LatenessObjective) -> Self {
        objective.to_string()
    }
}

/// Why due jobs do not start in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LatenessCause {
    /// The queue is paused.
    Paused,
    /// No runner serves the queue.
    NoRunner,
    /// As many jobs run as the queue's [`max_running`](super::flow::Flow::max_running) allows.
    MaxRunning,
    /// The queue's [`rate`](super::flow::Flow::rate) lets no job start.
    Rate,
    /// A handler has [throttled](crate::Outcome::throttle) the queue.
    Throttled,
    /// As many jobs of their groups run as
    /// [`group_max_running`](super::flow::Flow::group_max_running) allows.
    GroupFull,
    /// All slots are busy, although the handlers end quickly.
    SlotsFull,
    /// All slots are busy, and at the handlers' run times no slot frees in time.
    HandlersSlow,
    /// The store answers a claim later than a job may start, or not at all.
    StoreSlow,
    /// A runner's clock and the store's differ by more than a job may be late.
    ClockSkew,
    /// A cause from a later version.
    #[serde(other)]
    Other,
}

impl LatenessCause {
    /// Returns the stable name, such as `no_runner`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::NoRunner => "no_runner",
            Self::MaxRunning => "max_running",
            Self::Rate => "rate",
            Self::Throttled => "throttled",
            Self::GroupFull => "group_full",
            Self::SlotsFull => "slots_full",
            Self::HandlersSlow => "handlers_slow",
            Self::StoreSlow => "store_slow",
            Self::ClockSkew => "clock_skew",
            Self::Other => "other",
        }
    }

    /// Returns advice for an operator.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Paused => "resume the queue",
            Self::NoRunner => {
                "start a program that handles the queue; if one runs, is it connected to this store, \
                 and is the handler's crate linked?"
            }
            Self::MaxRunning => "raise the queue's `max_running`, or make the handler quicker",
            Self::Rate => "raise the queue's `rate`, or its burst",
            Self::Throttled => "wait until the queue opens, or resume it",
            Self::GroupFull => "raise the queue's `group_max_running`, or use smaller groups",
            Self::SlotsFull => {
                "raise the concurrency of the queue or of the runner, or add runners"
            }
            Self::HandlersSlow => {
                "make the handler quicker, set a shorter timeout, raise the concurrency, or add \
                 runners"
            }
            Self::StoreSlow => {
                "look at the load of the store and at the network between it and the runners"
            }
            Self::ClockSkew => "synchronise the clocks of all hosts, such as by NTP",
            Self::Other => "use the latest version of this program, which knows the cause",
        }
    }

    /// Returns why due jobs do not start; `None` if no known cause applies.
    pub fn of(facts: &LatenessFacts) -> Option<Self> {
        let is_too_long = |time: Option<Duration>| {
            time.zip(facts.within).is_some_and(|(time, within)| time >= within)
        };
        let has_no_free_slot = facts.free_slots == Some(0) && !facts.incomplete;
        if facts.paused {
            Some(Self::Paused)
        } else if facts.runners == Some(0) {
            // A runner that could not announce all its queues may serve this one.
            (!facts.incomplete).then_some(Self::NoRunner)
        } else if facts.limit.is_some() {
            facts.limit
        } else if has_no_free_slot {
            let slots = u32::try_from(facts.slots).unwrap_or(u32::MAX).max(1);
            let is_slow = match facts.run_time {
                // On average, a slot frees in this time.
                Some(run_time) => is_too_long(Some(run_time / slots)),
                // No job has ended for minutes, so jobs run longer, unless other queues' jobs have
                // the slots.
                None => facts.within.is_some() && facts.running >= facts.slots,
            };
            Some(if is_slow { Self::HandlersSlow } else { Self::SlotsFull })
        } else if is_too_long(facts.claim_time) {
            Some(Self::StoreSlow)
        } else if is_too_long(facts.skew) {
            Some(Self::ClockSkew)
        } else {
            facts.has_group_limit.then_some(Self::GroupFull)
        }
    }
}

impl fmt::Display for LatenessCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paused => "the queue is paused",
            Self::NoRunner => "no runner serves the queue",
            Self::MaxRunning => "as many jobs run as max_running allows",
            Self::Rate => "the rate of the queue lets no job start",
            Self::Throttled => "a handler has throttled the queue",
            Self::GroupFull => "the groups of the jobs are full",
            Self::SlotsFull => "all slots are busy",
            Self::HandlersSlow => "all slots are busy, and the handlers are slow",
            Self::StoreSlow => "the store is slow",
            Self::ClockSkew => "the clocks of a runner and of the store differ",
            Self::Other => "a cause that this version does not know",
        })
    }
}

/// Facts about a late queue, for [`LatenessCause::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatenessFacts {
    /// The objective's time limit. Without it, no time counts as too long.
    pub within: Option<Duration>,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Which limit for all processes lets no job start now; see
    /// [`QueueStats::limit`](crate::QueueStats::limit).
    pub limit: Option<LatenessCause>,
    /// Whether the queue limits groups, so that jobs that wait for nothing else wait for theirs.
    pub has_group_limit: bool,
    /// Number of runners for the queue; `None` if unknown.
    pub runners: Option<u64>,
    /// Whether uncounted runners may serve the queue.
    pub incomplete: bool,
    /// Jobs that the runners could start now; `None` if unknown.
    pub free_slots: Option<u64>,
    /// The runners' total slots for the queue.
    pub slots: u64,
    /// Number of running jobs.
    pub running: u64,
    /// The handlers' average run time; `None` if none has ended lately.
    pub run_time: Option<Duration>,
    /// The store's time to answer a claim, with retries; `None` if unknown.
    pub claim_time: Option<Duration>,
    /// The difference between the runners' and the store's clocks; `None` if unknown.
    pub skew: Option<Duration>,
}

/// A queue's starts in the last hour, in time or late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LatenessCounts {
    /// The objective.
    pub objective: LatenessObjective,
    /// Jobs that started in time.
    pub in_time: u64,
    /// Jobs that started late.
    pub late: u64,
    /// The cause of most late starts, if known.
    #[serde(default, deserialize_with = "known_cause", skip_serializing_if = "Option::is_none")]
    pub cause: Option<LatenessCause>,
}

fn known_cause<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<LatenessCause>, D::Error> {
    Ok(Option::deserialize(deserializer)?.filter(|cause| *cause != LatenessCause::Other))
}

impl LatenessCounts {
    /// Creates counts of zero.
    pub const fn new(objective: LatenessObjective) -> Self {
        Self { objective, in_time: 0, late: 0, cause: None }
    }

    /// Sums the counts with this objective.
    pub fn sum(objective: LatenessObjective, counts: &[Self]) -> Self {
        let mut sum = Self::new(objective);
        let mut most_late = 0;
        for counts in counts.iter().filter(|counts| counts.objective == objective) {
            sum.in_time += counts.in_time;
            sum.late += counts.late;
            if counts.late > most_late {
                most_late = counts.late;
                sum.cause = counts.cause;
            }
        }
        sum
    }
}

/// A queue's lateness compared with its objective. `Display` writes the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatenessStatus {
    /// The queue.
    pub queue: QueueName,
    /// Starts in the last hour.
    pub counts: LatenessCounts,
    /// Late jobs that still wait. They count as late starts.
    pub waiting: u64,
    /// The cause that delays the waiting jobs if known, else the cause of most late starts.
    pub cause: Option<LatenessCause>,
}

impl LatenessStatus {
    /// Creates a status; `present_cause` delays the waiting jobs.
    pub fn new(
        queue: QueueName,
        counts: LatenessCounts,
        waiting: u64,
        present_cause: Option<LatenessCause>,
    ) -> Self {
        let cause = present_cause.filter(|_| waiting > 0).or(counts.cause);
        Self { queue, counts, waiting, cause }
    }

    /// Returns whether too few jobs are in time.
    pub fn is_missed(&self) -> bool {
        let LatenessCounts { objective, in_time, late, .. } = self.counts;
        objective.is_missed(in_time, late.saturating_add(self.waiting))
    }
}

impl fmt::Display for LatenessStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LatenessCounts { objective, in_time, late, .. } = self.counts;
        write!(f, "the objective is {objective}; ")?;
        match in_time.saturating_add(late) {
            0 => f.write_str("no job has started in the last hour")?,
            starts => write!(f, "of {starts} starts in the last hour {late} were late")?,
        }
        write!(f, ", and {} late jobs wait", self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(text: &str) -> LatenessObjective {
        text.parse().unwrap()
    }

    #[test]
    fn objectives_are_read_and_written() {
        for (text, written, share, millis) in [
            ("99% < 100ms", "99% < 100ms", 99_000, 100),
            ("  50.5 %  <  1m 30s ", "50.5% < 1m 30s", 50_500, 90_000),
            ("99.999%<1ms", "99.999% < 1ms", 99_999, 1),
            ("0.001% < 1s", "0.001% < 1s", 1, 1_000),
            ("99% < 1day 1h 1ms", "99% < 1d 1h 1ms", 99_000, 90_000_001),
        ] {
            let objective = objective(text);
            let within = Duration::from_millis(millis);
            assert_eq!(objective, LatenessObjective { share, within });
            assert_eq!(objective.to_string(), written);
        }
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        for (text, problem) in [
            ("", "no '<'"),
            ("99% <= 100ms", "not a time"),
            ("99 < 100ms", "'%'"),
            ("0% < 1s", "more than 0%"),
            ("100.001% < 1s", "at most 100%"),
            ("99.9999% < 1s", "three decimals"),
            ("+1% < 1s", "not a number"),
            ("1e1% < 1s", "not a number"),
            (".5% < 1s", "not a number"),
            ("% < 1s", "not a number"),
            ("99% < 100", "not a time"),
            ("99% < 999us", "less than 1ms"),
        ] {
            let error = text.parse::<LatenessObjective>().unwrap_err().to_string();
            for needle in [&format!("invalid input: {text:?}"), problem, "\"99% < 100ms\""] {
                assert!(error.contains(needle), "{text}: {error}");
            }
        }
    }

    #[test]
    fn a_share_is_compared_exactly() {
        let objective = objective("99% < 100ms");
        assert!(!objective.is_missed(0, 0) && !objective.is_missed(99, 1));
        assert!(objective.is_missed(98, 1));
        assert!(objective.is_missed(u64::MAX / 2, u64::MAX));
        assert!(objective.is_late(Duration::from_millis(100)));
        assert!(!objective.is_late(Duration::from_millis(99)));
    }

    #[test]
    fn the_cause_follows_from_the_facts() {
        use LatenessCause::{
            ClockSkew, GroupFull, HandlersSlow, NoRunner, Paused, Rate, SlotsFull, StoreSlow,
        };
        let millis = |millis| Some(Duration::from_millis(millis));
        let well = LatenessFacts {
            within: millis(100),
            paused: false,
            limit: None,
            has_group_limit: false,
            runners: Some(2),
            incomplete: false,
            free_slots: Some(3),
            slots: 8,
            running: 8,
            run_time: millis(50),
            claim_time: millis(5),
            skew: millis(3),
        };
        let full = LatenessFacts { free_slots: Some(0), ..well };
        let slow = LatenessFacts { run_time: millis(800), ..full };
        let nobody = LatenessFacts { runners: Some(0), free_slots: Some(0), slots: 0, ..well };
        let away = LatenessFacts { claim_time: millis(100), ..well };
        let skewed = LatenessFacts { skew: millis(100), ..well };
        for (facts, cause) in [
            (well, None),
            (full, Some(SlotsFull)),
            (slow, Some(HandlersSlow)),
            // One of eight slots frees every 99.9 ms.
            (LatenessFacts { run_time: millis(799), ..full }, Some(SlotsFull)),
            (LatenessFacts { run_time: None, ..full }, Some(HandlersSlow)),
            (LatenessFacts { run_time: None, within: None, ..full }, Some(SlotsFull)),
            // Other queues have the slots.
            (LatenessFacts { run_time: None, running: 7, ..full }, Some(SlotsFull)),
            (LatenessFacts { within: None, ..slow }, Some(SlotsFull)),
            (LatenessFacts { incomplete: true, ..slow }, None),
            // Slow handlers are no cause while a slot is free.
            (LatenessFacts { free_slots: Some(1), ..slow }, None),
            (nobody, Some(NoRunner)),
            (LatenessFacts { within: None, ..nobody }, Some(NoRunner)),
            (LatenessFacts { incomplete: true, ..nobody }, None),
            (LatenessFacts { runners: None, free_slots: None, slots: 0, ..well }, None),
            (LatenessFacts { paused: true, ..nobody }, Some(Paused)),
            (LatenessFacts { limit: Some(Rate), paused: true, ..well }, Some(Paused)),
            (LatenessFacts { limit: Some(Rate), ..nobody }, Some(NoRunner)),
            (LatenessFacts { limit: Some(Rate), ..slow }, Some(Rate)),
            (LatenessFacts { has_group_limit: true, ..full }, Some(SlotsFull)),
            (LatenessFacts { has_group_limit: true, ..away }, Some(StoreSlow)),
            (LatenessFacts { has_group_limit: true, ..well }, Some(GroupFull)),
            (away, Some(StoreSlow)),
            (LatenessFacts { claim_time: millis(99), ..well }, None),
            (LatenessFacts { skew: millis(1_000), ..away }, Some(StoreSlow)),
            (LatenessFacts { free_slots: Some(0), ..away }, Some(SlotsFull)),
            (skewed, Some(ClockSkew)),
            (LatenessFacts { within: None, ..skewed }, None),
        ] {
            assert_eq!(LatenessCause::of(&facts), cause, "{facts:?}");
        }
    }

    #[test]
    fn causes_of_later_versions_are_read() {
        let json = r#"{"objective":"99% < 100ms","in_time":1,"late":1,"cause":"gremlins"}"#;
        let counts: LatenessCounts = serde_json::from_str(json).unwrap();
        assert_eq!((counts.late, counts.cause), (1, None));
        for cause in [LatenessCause::NoRunner, LatenessCause::ClockSkew] {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.as_str());
        }
    }
}
