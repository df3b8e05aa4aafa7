//! The jobs of a schedule's occurrences.
//!
//! [`schedules`](super) explains the terms.

use std::time::Duration;

use super::plan::ON_TIME;
use super::schedule_job::{REMOVED, ScheduleJob};
use crate::backend::Scheduled;
use crate::error::{Error, ErrorKind, Result};
use crate::model::schedule::occurrence_id;
use crate::model::{CatchUp, Due, Headers, Job, JobKey, NewJob, Overlap, Timestamp};

/// Extra time to pin an occurrence's id, for a process suspended during its call. After a longer
/// suspension the occurrence may run twice; a longer margin keeps more ids.
const PIN_MARGIN: Duration = Duration::from_secs(15 * 60);

const MAX_PINNED: Duration = Duration::from_secs(400 * 86_400);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handled {
    Stored,
    Waits,
    Skipped,
}

impl ScheduleJob {
    /// Creates jobs for ordered occurrences, due at their own times, or in order until `until`.
    pub(super) fn due_jobs(
        &self,
        name: &str,
        occurrences: &[Timestamp],
        until: Option<Timestamp>,
        horizon: Duration,
    ) -> Result<Vec<NewJob>> {
        let offset = self.spec.offset(name);
        // Each is due a millisecond before the next.
        let places_from_last = (0..occurrences.len() as u64).rev();
        let with_due = occurrences.iter().zip(places_from_last).map(|(time, place)| {
            let due = until
                .map_or(time.saturating_add(offset), |until| until - Duration::from_millis(place));
            (*time, Due::At(due))
        });
        self.occurrence_jobs(name, &with_due.collect::<Vec<_>>(), horizon)
    }

    /// Returns how the store's answer handles an occurrence.
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
            Error::new(ErrorKind::Codec, "the payload does not encode").source(error)
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

    /// Returns when catch-up no longer reaches this occurrence or an earlier one, because `max`
    /// newer ones exist. `None` if no later one exists.
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

/// Returns the key of a schedule's jobs, unless they may overlap.
pub(crate) fn occurrence_key(name: &str) -> Result<JobKey> {
    JobKey::new(format!("dq.schedule/{name}"))
}

/// Returns a schedule job's next occurrence job, as it will be stored; `None` during removal.
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
        let twice_a_week =
            |catch_up| schedule_job(Cron::new("0,1 0 * * SUN", "UTC").unwrap(), catch_up);
        assert_eq!(pinned(&twice_a_week("last")), 1.minutes());
        assert_eq!(pinned(&twice_a_week("all:2")), 7.days());
    }
}
