//! Decides which occurrences a schedule job schedules.

use std::time::Duration;

use crate::model::{CatchUp, ScheduleSpec, Timestamp};

/// How late an occurrence may be scheduled without counting as missed.
pub(super) const ON_TIME: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) occurrences: Vec<Timestamp>,
    /// Whether late occurrences were left out.
    pub(super) has_missed: bool,
    pub(super) cursor: Timestamp,
    pub(super) next: Option<Timestamp>,
}

/// Plans the occurrences after `cursor` and up to `now`, which is the real time minus the
/// schedule's offset.
pub(super) fn plan(spec: &ScheduleSpec, cursor: Timestamp, now: Timestamp) -> Plan {
    let first = spec.next_after(cursor);
    let Some(due) = first.filter(|first| *first <= now) else {
        return Plan { occurrences: Vec::new(), has_missed: false, cursor, next: first };
    };
    let last_before = |until: Timestamp| {
        let last = spec.times.last_between(cursor.as_millis(), until.as_millis());
        last.map(Timestamp::from_millis)
    };
    // A schedule job on time has only one, and searching for the last one takes forty times as long.
    let second = spec.next_after(due);
    let (last, next) = if second.is_none_or(|second| second > now) {
        (due, second)
    } else {
        let last = last_before(now).unwrap_or(due);
        (last, spec.next_after(last))
    };
    let (max, deadline) = match spec.catch_up {
        CatchUp::None => (CatchUp::MAX as usize, Some(ON_TIME)),
        CatchUp::Last | CatchUp::All(_) => (spec.catch_up.max(), None),
    };
    let deadline = deadline.into_iter().chain(spec.deadline).min();
    let earlier = |time: &Timestamp| {
        let has_earlier = *time > due;
        has_earlier.then(|| last_before(Timestamp::from_millis(time.as_millis() - 1))).flatten()
    };
    let mut occurrences: Vec<Timestamp> = std::iter::successors(Some(last), earlier)
        .take(max)
        .take_while(|time| deadline.is_none_or(|deadline| now.since(*time) <= deadline))
        .collect();
    occurrences.reverse();
    let has_missed = occurrences.first() != Some(&due);
    Plan { has_missed, occurrences, cursor: last, next }
}

pub(super) fn occurrences_between(
    spec: &ScheduleSpec,
    after: Timestamp,
    until: Timestamp,
    max: usize,
) -> Vec<Timestamp> {
    let times = std::iter::successors(spec.next_after(after), |time| spec.next_after(*time));
    times.take(max).take_while(|time| *time <= until).collect()
}

#[cfg(test)]
mod tests {
    use dq_cron::{Cron, Interval};

    use super::*;
    use crate::model::{DurationExt, QueueName};

    const MINUTE: i64 = 60_000;
    const DAY: i64 = 24 * 60 * MINUTE;
    /// 2026-03-01T00:00Z.
    const START: i64 = 1_772_323_200_000;

    fn spec(times: impl Into<dq_cron::Times>, catch_up: &str) -> ScheduleSpec {
        let queue = QueueName::new("REPORT").unwrap();
        let mut spec = ScheduleSpec::new(queue, times, serde_json::Value::Null);
        spec.catch_up = catch_up.parse().unwrap();
        spec
    }

    fn every_minute(catch_up: &str) -> ScheduleSpec {
        spec(Interval::new(1.minutes()).unwrap(), catch_up)
    }

    fn planned(spec: &ScheduleSpec, millis: i64) -> (Vec<i64>, bool) {
        let now = Timestamp::from_millis(START + millis);
        let plan = plan(spec, Timestamp::from_millis(START), now);
        assert!(plan.cursor <= now && plan.next.is_none_or(|next| next > now), "{plan:?}");
        let minutes = |time: &Timestamp| (time.as_millis() - START) / MINUTE;
        (plan.occurrences.iter().map(minutes).collect(), plan.has_missed)
    }

    #[test]
    fn what_runs_after_a_while_without_processes() {
        let nightly = |catch_up| spec(Cron::new("30 2 * * *", "UTC").unwrap(), catch_up);
        let night = 150;
        for (down, catch_up, every_minute_runs, nightly_runs) in [
            (2 * MINUTE + 1, "last", vec![2], vec![]),
            (2 * MINUTE + 1, "none", vec![2], vec![]),
            (2 * MINUTE + 1, "all:3", vec![1, 2], vec![]),
            (180 * MINUTE + 1, "last", vec![180], vec![night]),
            (180 * MINUTE + 1, "none", vec![180], vec![]),
            (180 * MINUTE + 1, "all:3", vec![178, 179, 180], vec![night]),
            (40 * DAY + 1, "last", vec![40 * 1_440], vec![39 * 1_440 + night]),
            (40 * DAY + 1, "none", vec![40 * 1_440], vec![]),
            (
                40 * DAY + 1,
                "all:2",
                vec![40 * 1_440 - 1, 40 * 1_440],
                vec![38 * 1_440 + night, 39 * 1_440 + night],
            ),
        ] {
            let context = format!("{catch_up} after {} min", down / MINUTE);
            assert_eq!(planned(&every_minute(catch_up), down).0, every_minute_runs, "{context}");
            assert_eq!(planned(&nightly(catch_up), down).0, nightly_runs, "{context}");
        }
    }

    #[test]
    fn with_none_each_occurrence_of_the_last_minute_runs() {
        let every =
            |seconds: u64, catch_up| spec(Interval::new(seconds.seconds()).unwrap(), catch_up);
        let cron = || spec(Cron::new("*/20 * * * * *", "UTC").unwrap(), "none");
        for (spec, millis, runs, has_missed) in [
            (every(1, "none"), 5_100, 5, false),
            (every(1, "last"), 5_100, 1, true),
            (every(20, "none"), 60_500, 3, false),
            (every(20, "none"), 85_000, 3, true),
            (cron(), 60_500, 3, false),
            (cron(), 85_000, 3, true),
        ] {
            let (occurrences, missed) = planned(&spec, millis);
            assert_eq!((occurrences.len(), missed), (runs, has_missed), "{spec:?}, {millis} ms");
        }
    }

    #[test]
    fn an_occurrence_after_its_deadline_does_not_run() {
        let mut late = every_minute("all:10");
        late.deadline = Some(90.seconds());
        assert_eq!(planned(&late, 5 * MINUTE + 1_000), (vec![4, 5], true));
        let mut nightly = spec(Cron::new("30 2 * * *", "UTC").unwrap(), "last");
        nightly.deadline = Some(30.minutes());
        assert_eq!(planned(&nightly, 180 * MINUTE), (vec![150], false));
        assert_eq!(planned(&nightly, 180 * MINUTE + 1), (vec![], true));
    }
}
