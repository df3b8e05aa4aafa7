//! Schedules of recurring jobs.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use dq_cron::{Cron, Interval, Times};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use super::job::JobId;
use super::name::check_name;
use super::queue::QueueName;
use super::timestamp::Timestamp;
use crate::error::{Error, Result};

/// The namespace of job ids that are derived from names (UUID version 5).
const NAMESPACE: Uuid = Uuid::from_u128(0x5d0c_9a3e_6f21_4b7a_9c58_0e1f_2d3b_4a69);

/// The policy for occurrences missed because no process was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CatchUp {
    /// Only the last one runs, late.
    #[default]
    Last,
    /// None runs. An occurrence is missed if it is not scheduled within a minute.
    None,
    /// Up to this many of the last ones run, each late.
    All(NonZeroU32),
}

/// The policy for an occurrence while an earlier one's job is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// It does not run.
    #[default]
    Skip,
    /// It runs beside the earlier one.
    Allow,
    /// It waits until the earlier one has ended. While one waits, later ones do not run.
    QueueOne,
}

/// A schedule: when jobs recur, and which jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleSpec {
    /// The jobs' queue.
    pub queue: QueueName,
    /// When the jobs recur.
    #[serde(with = "stored_times")]
    pub times: Times,
    /// Each job's payload.
    pub payload: serde_json::Value,
    /// The payload's schema version, which each job carries; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_version: Option<u32>,
    /// The policy for missed occurrences.
    pub catch_up: CatchUp,
    /// The policy while an earlier occurrence's job is live.
    pub overlap: Overlap,
    /// How late an occurrence may be scheduled; without it, at any time.
    #[serde(default, with = "stored_duration", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// Maximum delay. The name determines the actual delay of all occurrences, so that schedules
    /// with the same times do not start at once.
    #[serde(default, with = "stored_duration", skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Duration>,
}

impl ScheduleSpec {
    /// Maximum schedule name length in bytes.
    pub const MAX_NAME_BYTES: usize = 200;

    /// Creates a schedule with this payload and default policies.
    pub fn new(queue: QueueName, times: impl Into<Times>, payload: serde_json::Value) -> Self {
        Self {
            queue,
            times: times.into(),
            payload,
            schema_version: None,
            catch_up: CatchUp::default(),
            overlap: Overlap::default(),
            deadline: None,
            jitter: None,
        }
    }

    /// Returns the cron expression; `None` for an interval.
    pub fn cron(&self) -> Option<&str> {
        match &self.times {
            Times::Cron(cron) => Some(cron.expression()),
            _ => None,
        }
    }

    /// Returns the cron expression's time zone; `None` for an interval.
    pub fn zone(&self) -> Option<&str> {
        match &self.times {
            Times::Cron(cron) => Some(cron.zone()),
            _ => None,
        }
    }

    /// Returns whether the interval is below a second, although each occurrence costs several store
    /// calls.
    pub fn is_rapid(&self) -> bool {
        self.every().is_some_and(|every| every < Duration::from_secs(1))
    }

    /// Returns the interval; `None` for a cron expression.
    pub fn every(&self) -> Option<Duration> {
        match &self.times {
            Times::Interval(interval) => Some(interval.length()),
            _ => None,
        }
    }

    /// Returns the specification as it reads back from the store. Durations become whole
    /// milliseconds, and some payload floats change in the last digit, perhaps more than once.
    pub(crate) fn stored_form(mut self) -> Self {
        for _ in 0..4 {
            let stored = serde_json::to_value(&self).map(|json| json.to_string());
            let Ok(read) = stored.and_then(|json| serde_json::from_str::<Self>(&json)) else {
                break;
            };
            if std::mem::replace(&mut self, read.clone()) == read {
                break;
            }
        }
        self
    }

    /// Checks a schedule name: 1 to 200 bytes without control characters.
    ///
    /// # Errors
    /// `InvalidInput` with the problem.
    pub fn check_name(name: &str) -> Result<()> {
        check_name("name of the schedule", name, Self::MAX_NAME_BYTES)
    }

    /// Returns the first occurrence after this time, without jitter; `None` if there is none.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        self.times.next_after(time.as_millis()).map(Timestamp::from_millis)
    }

    /// Returns the delay of all occurrences: the part of the jitter that the name determines.
    pub(crate) fn offset(&self, name: &str) -> Duration {
        let Some(jitter) = self.jitter else { return Duration::ZERO };
        let (hash, _) = Uuid::new_v5(&NAMESPACE, name.as_bytes()).as_u64_pair();
        let part = (u128::from(hash) * jitter.as_millis()) >> 64;
        Duration::from_millis(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

/// Returns the id of an occurrence's job. It is the same in each process and after each crash.
pub(crate) fn occurrence_id(name: &str, occurrence: Timestamp) -> JobId {
    // No name has a line feed, so different pairs have different texts.
    let text = format!("{name}\n{}", occurrence.as_millis());
    JobId::from_bytes(Uuid::new_v5(&NAMESPACE, text.as_bytes()).into_bytes())
}

/// Returns the id of the schedule job that replaces `id`. It is the same in all processes, so only
/// one of several replacements succeeds.
pub(crate) fn successor_id(id: JobId) -> JobId {
    let text = format!("after\n{id}");
    JobId::from_bytes(Uuid::new_v5(&NAMESPACE, text.as_bytes()).into_bytes())
}

impl CatchUp {
    /// Maximum number in [`CatchUp::All`].
    pub const MAX: u32 = 1_000;

    pub(crate) fn max(self) -> usize {
        match self {
            Self::Last => 1,
            Self::None => 0,
            Self::All(max) => max.get().min(Self::MAX) as usize,
        }
    }

    /// `All` schedules several missed occurrences at once, and `Skip` would lose all but one.
    pub(crate) fn default_overlap(self) -> Overlap {
        match self {
            Self::Last | Self::None => Overlap::Skip,
            Self::All(_) => Overlap::Allow,
        }
    }
}

/// Writes `last`, `none` or `all:10`.
impl fmt::Display for CatchUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last => f.write_str("last"),
            Self::None => f.write_str("none"),
            Self::All(max) => write!(f, "all:{max}"),
        }
    }
}

impl FromStr for CatchUp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let max = text.strip_prefix("all:").and_then(|max| max.parse::<NonZeroU32>().ok());
        match (text, max) {
            ("last", _) => Ok(Self::Last),
            ("none", _) => Ok(Self::None),
            (_, Some(max)) if max.get() <= Self::MAX => Ok(Self::All(max)),
            _ => Err(Error::invalid(format!("{text:?} is not a value of `catch_up`"))
                .remedy("write \"last\", \"none\", or \"all:10\" with a number up to 1000")),
        }
    }
}

impl Serialize for CatchUp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CatchUp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Parses `skip`, `allow` or `queue_one`.
impl FromStr for Overlap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "skip" => Ok(Self::Skip),
            "allow" => Ok(Self::Allow),
            "queue_one" => Ok(Self::QueueOne),
            _ => Err(Error::invalid(format!("{text:?} is not a value of `overlap`"))
                .remedy("write \"skip\", \"allow\" or \"queue_one\"")),
        }
    }
}

/// Times in the store: `{"cron": "30 2 * * *", "tz": "Europe/Stockholm"}`, or `{"every": 90000}` in
/// milliseconds.
mod stored_times {
    use super::compiled::compiled;
    use super::{Deserialize, Deserializer, Duration, Interval, Serialize, Serializer, Times, de};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Stored {
        Cron { cron: String, tz: String },
        Interval { every: u64 },
    }

    pub(super) fn serialize<S: Serializer>(
        times: &Times,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let stored = match times {
            Times::Cron(cron) => {
                Stored::Cron { cron: cron.expression().to_owned(), tz: cron.zone().to_owned() }
            }
            Times::Interval(interval) => {
                let millis = u64::try_from(interval.length().as_millis());
                Stored::Interval { every: millis.map_err(serde::ser::Error::custom)? }
            }
            other => return Err(serde::ser::Error::custom(format!("{other} cannot be stored"))),
        };
        stored.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Times, D::Error> {
        match Stored::deserialize(deserializer)? {
            Stored::Cron { cron, tz } => compiled(cron, tz).map(Times::from),
            Stored::Interval { every } => {
                Interval::new(Duration::from_millis(every)).map(Times::from)
            }
        }
        .map_err(de::Error::custom)
    }
}

/// Caches compiled expressions: a compilation takes 50 µs, and a schedule is read at each
/// occurrence.
mod compiled {
    use std::collections::HashMap;
    use std::sync::{Mutex, PoisonError};

    use super::Cron;

    pub(super) const CAPACITY: usize = 1_024;

    static CACHE: Mutex<Option<HashMap<(String, String), Cron>>> = Mutex::new(None);

    pub(super) fn compiled(expression: String, zone: String) -> Result<Cron, dq_cron::Error> {
        let key = (expression, zone);
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = cache.get_or_insert_default();
        if let Some(cron) = cache.get(&key) {
            return Ok(cron.clone());
        }
        let cron = Cron::new(&key.0, &key.1)?;
        // Few programs have so many expressions, so it does not matter which ones stay.
        if cache.len() >= CAPACITY {
            cache.clear();
        }
        cache.insert(key, cron.clone());
        Ok(cron)
    }

    #[cfg(test)]
    pub(super) fn len() -> usize {
        CACHE.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, HashMap::len)
    }
}

/// Durations in the store: milliseconds.
mod stored_duration {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let millis = duration.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        millis.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DurationExt;

    const STORED: &str = r#"{"queue":"REPORT","times":{"cron":"30 2 * * *","tz":"Europe/Stockholm"},"payload":{"a":[1,null]},"catch_up":"all:3","overlap":"queue_one","deadline":3600000}"#;

    #[test]
    fn the_stored_form_is_stable() {
        let mut spec = ScheduleSpec::new(
            QueueName::new("REPORT").unwrap(),
            Cron::new("30 2 * * *", "Europe/Stockholm").unwrap(),
            serde_json::json!({"a": [1, null]}),
        );
        spec.catch_up = "all:3".parse().unwrap();
        spec.overlap = Overlap::QueueOne;
        spec.deadline = Some(1.hours());
        assert_eq!(serde_json::to_string(&spec).unwrap(), STORED);
        assert_eq!(serde_json::from_str::<ScheduleSpec>(STORED).unwrap(), spec);
        let later = STORED.replacen('{', r#"{"later":{},"#, 1);
        assert_eq!(serde_json::from_str::<ScheduleSpec>(&later).unwrap(), spec);
        // This id must never change, because it identifies a repeated occurrence.
        let time = Timestamp::from_millis(1_772_323_200_000);
        assert_eq!(
            occurrence_id("REPORT", time).to_string(),
            "8f2916ac-bc0a-5114-87f1-6d13e601ab9d"
        );
    }

    #[test]
    fn compiled_expressions_are_kept_up_to_a_limit_and_not_confused() {
        for number in 0..2_500 {
            let expression = format!("{} {} * * *", number % 60, number / 60 % 24);
            for zone in ["UTC", "Europe/Stockholm"] {
                let cron = compiled::compiled(expression.clone(), zone.to_owned()).unwrap();
                assert_eq!((cron.expression(), cron.zone()), (expression.as_str(), zone));
            }
        }
        assert!(compiled::len() <= compiled::CAPACITY);
        assert!(compiled::compiled("0 0 31 2 *".to_owned(), "UTC".to_owned()).is_err());
    }

    #[test]
    fn the_jitter_is_a_part_of_its_length_that_depends_on_the_name() {
        let mut spec = ScheduleSpec::new(
            QueueName::new("REPORT").unwrap(),
            Interval::new(1.minutes()).unwrap(),
            serde_json::Value::Null,
        );
        assert_eq!(spec.offset("a"), Duration::ZERO);
        spec.jitter = Some(10.seconds());
        let offsets: Vec<_> = (0..1_000).map(|n| spec.offset(&format!("schedule-{n}"))).collect();
        assert!(offsets.iter().all(|offset| *offset < 10.seconds()));
        let early = offsets.iter().filter(|offset| **offset < 5.seconds()).count();
        assert!((400..600).contains(&early), "{early} of 1,000 in the first half");
        assert_eq!(offsets[7], spec.offset("schedule-7"));
    }

    #[test]
    fn ways_to_catch_up_and_to_overlap_are_read_and_refused() {
        for text in ["last", "none", "all:1000"] {
            assert_eq!(text.parse::<CatchUp>().unwrap().to_string(), text);
        }
        for text in ["", "Last", "all", "all:0", "all:1001", "all:x"] {
            let error = text.parse::<CatchUp>().unwrap_err().to_string();
            assert!(error.contains("all:10"), "{error}");
        }
        assert!("queue".parse::<Overlap>().unwrap_err().to_string().contains("queue_one"));
    }
}
