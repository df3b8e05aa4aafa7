//! Which occurrences a schedule job schedules, and their jobs.
//!
//! [`schedules`](super) explains the terms.

use std::time::Duration;

use super::schedule_job::{REMOVED, ScheduleJob};
use crate::backend::Scheduled;
use crate::error::{Error, ErrorKind, Result};
use crate::model::schedule::occurrence_id;
use crate::model::{CatchUp, Due, Headers, Job, JobKey, NewJob, Overlap, ScheduleSpec, Timestamp};

/// How late an occurrence may be scheduled without counting as missed.
pub(super) const ON_TIME: Duration = Duration::from_secs(60);

/// The occurrences to schedule now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) occurrences: Vec<Timestamp>,
    /// Whether late occurrences were left out.
    pub(super) has_missed: bool,
    /// The schedule's new cursor: the last occurrence that needs no more work.
    pub(super) cursor: Timestamp,
    /// The first occurrence after now.
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
    // A schedule job on time has only one, and searching for the last one takes forty times as
    // long.
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

/// Extra time to pin an occurrence's id, for a process suspended during its call. After a longer
/// suspension the occurrence may run twice; a longer margin keeps more ids.
const PIN_MARGIN: Duration = Duration::from_secs(15 * 60);

/// The longest time for which an id is pinned: more than a year, for yearly schedules.
const MAX_PINNED: Duration = Duration::from_secs(400 * 86_400);

/// What became of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handled {
    /// Its job is stored, by this call or an earlier one.
    Stored,
    /// The previous occurrence's job is live, and this one waits for its end.
    Waits,
    /// The previous occurrence's job is live, so this one does not run.
    Skipped,
}

impl ScheduleJob {
    /// Creates the jobs of `occurrences`, which are in order.
    ///
    /// Each job is due at its occurrence's time. With `until`, the last job is due then, and each
    /// earlier one a millisecond before the next, so that they run in order. `horizon` is the
    /// longest time for which the store pins ids.
    pub(super) fn due_jobs(
        &self,
        name: &str,
        occurrences: &[Timestamp],
        until: Option<Timestamp>,
        horizon: Duration,
    ) -> Result<Vec<NewJob>> {
        let offset = self.spec.offset(name);
        let places_from_last = (0..occurrences.len() as u64).rev();
        let with_due = occurrences.iter().zip(places_from_last).map(|(time, place)| {
            let due = until
                .map_or(time.saturating_add(offset), |until| until - Duration::from_millis(place));
            (*time, Due::At(due))
        });
        self.occurrence_jobs(name, &with_due.collect::<Vec<_>>(), horizon)
    }

    /// Returns the result of an occurrence; `scheduled` is the store's answer about its job.
    pub(super) fn handled(
        &self,
        name: &str,
        occurrence: Timestamp,
        scheduled: Scheduled,
    ) -> Handled {
        let earlier = match scheduled {
            Scheduled::Kept(receipt) | Scheduled::AlreadyRunning(receipt) => Some(receipt.id),
            // Stored, now or by an earlier run.
            Scheduled::Created(_) | Scheduled::Replaced(_) | Scheduled::Ended(_) => None,
        };
        // The store also keeps an id in another queue: the schedule's queue has changed.
        if earlier.is_none_or(|earlier| earlier == occurrence_id(name, occurrence)) {
            Handled::Stored
        } else if self.spec.overlap == Overlap::QueueOne {
            Handled::Waits
        } else {
            Handled::Skipped
        }
    }

    /// Creates the jobs of occurrences with their due times, and pins their ids for long enough.
    pub(super) fn occurrence_jobs(
        &self,
        name: &str,
        occurrences: &[(Timestamp, Due)],
        horizon: Duration,
    ) -> Result<Vec<NewJob>> {
        let Some((last, _)) = occurrences.last() else { return Ok(Vec::new()) };
        let replaced_at = self.replaced_at(*last);
        let jobs = occurrences.iter().map(|(occurrence, due)| {
            let mut job = self.occurrence_job(name, *occurrence, *due)?;
            job.remember = self.pinned_for(*occurrence, replaced_at).min(horizon);
            Ok(job)
        });
        jobs.collect()
    }

    fn occurrence_job(&self, name: &str, occurrence: Timestamp, due: Due) -> Result<NewJob> {
        let payload = serde_json::to_vec(&self.spec.payload).map_err(|error| {
            let message = format!("the payload of the schedule {name} does not encode");
            Error::new(ErrorKind::Codec, message).source(error)
        })?;
        let id = occurrence_id(name, occurrence);
        let mut job = NewJob::new(id, self.spec.queue.clone(), due, payload.into());
        let mut headers = Headers::new();
        headers.insert(Headers::SCHEDULE, name);
        headers.insert(Headers::OCCURRENCE, occurrence.as_millis().to_string());
        if let Some(version) = self.spec.schema_version {
            headers.insert(Headers::SCHEMA_VERSION, version.to_string());
        }
        job.headers = headers;
        if self.spec.overlap != Overlap::Allow {
            job.key = Some(occurrence_key(name)?);
        }
        Ok(job)
    }

    /// Returns when catch-up no longer reaches this occurrence: when it leaves room only for later
    /// ones, or none is left. `None` if no occurrence follows.
    fn replaced_at(&self, occurrence: Timestamp) -> Option<Timestamp> {
        let following = std::iter::successors(self.spec.next_after(occurrence), |time| {
            self.spec.next_after(*time)
        });
        following.take(self.spec.catch_up.max()).last()
    }

    /// Returns how long to pin an occurrence's id: longer than an interrupted schedule job can
    /// schedule it again. Later occurrences then take its place, or its deadline is over.
    ///
    /// An occurrence that waited for an earlier one is the exception, because nothing replaces it.
    /// It may run twice if the schedule job is interrupted just after storing it, and no runner
    /// comes until the id is free.
    ///
    /// `replaced_at` belongs to the last occurrence stored in the same call. Computing it for each
    /// of a thousand takes seconds.
    fn pinned_for(&self, occurrence: Timestamp, replaced_at: Option<Timestamp>) -> Duration {
        let replaced_after = match self.spec.catch_up {
            CatchUp::None => ON_TIME,
            CatchUp::Last | CatchUp::All(_) => {
                replaced_at.map_or(MAX_PINNED, |time| time.since(occurrence))
            }
        };
        let schedulable = self.spec.deadline.unwrap_or(MAX_PINNED).min(replaced_after);
        schedulable.saturating_add(PIN_MARGIN).min(MAX_PINNED)
    }
}

/// Returns the key that a schedule's jobs share if they must not overlap.
pub(crate) fn occurrence_key(name: &str) -> Result<JobKey> {
    JobKey::new(format!("dq.schedule/{name}"))
}

/// Returns the job that a schedule job will schedule next; `None` if the schedule is being removed.
pub(crate) fn job_of_schedule(schedule_job: &Job) -> Result<Option<NewJob>> {
    if schedule_job.payload == REMOVED {
        return Ok(None);
    }
    let name = schedule_job.key.as_ref().map_or("", JobKey::as_str);
    let decoded = ScheduleJob::decode(name, &schedule_job.payload)?;
    decoded.occurrence_job(name, schedule_job.due, Due::At(schedule_job.due)).map(Some)
}

#[cfg(test)]
mod tests {
    use dq_cron::{Cron, Interval};

    use super::*;
    use crate::model::DurationExt;
    use crate::schedules::schedule_job::tests::{START, schedule_job};

    const MINUTE: i64 = 60_000;
    const DAY: i64 = 24 * 60 * MINUTE;

    fn spec(times: impl Into<dq_cron::Times>, catch_up: &str) -> ScheduleSpec {
        schedule_job(times, catch_up).spec
    }

    fn every_minute(catch_up: &str) -> ScheduleSpec {
        spec(Interval::new(1.minutes()).unwrap(), catch_up)
    }

    fn planned(spec: &ScheduleSpec, millis: i64) -> (Vec<i64>, bool) {
        let now = Timestamp::from_millis(START.as_millis() + millis);
        let plan = plan(spec, START, now);
        assert!(plan.cursor <= now && plan.next.is_none_or(|next| next > now), "{plan:?}");
        let minutes = |time: &Timestamp| (time.as_millis() - START.as_millis()) / MINUTE;
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

    #[test]
    fn an_id_is_pinned_for_as_long_as_its_schedule_job_can_schedule_it_again() {
        let pinned = |schedule_job: &ScheduleJob| {
            schedule_job.pinned_for(START, schedule_job.replaced_at(START)) - PIN_MARGIN
        };
        let every_minute = |catch_up| schedule_job(Interval::new(1.minutes()).unwrap(), catch_up);
        assert_eq!(pinned(&every_minute("last")), 1.minutes());
        assert_eq!(pinned(&every_minute("none")), ON_TIME);
        assert_eq!(pinned(&every_minute("all:90")), 90.minutes());
        let mut late = every_minute("all:90");
        late.spec.deadline = Some(10.minutes());
        assert_eq!(pinned(&late), 10.minutes());
        let two_minutes_a_week =
            |catch_up| schedule_job(Cron::new("0,1 0 * * SUN", "UTC").unwrap(), catch_up);
        assert_eq!(pinned(&two_minutes_a_week("last")), 1.minutes());
        assert_eq!(pinned(&two_minutes_a_week("all:2")), 7.days());
    }
}
