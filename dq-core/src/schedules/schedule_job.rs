//! The schedule job: its stored form, and how calls change it.
//!
//! [`schedules`](super) explains the terms.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Capabilities};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Due, JobId, JobKey, NewJob, QueueName, ScheduleSpec, Timestamp};

/// The reserved queue of schedule jobs.
pub(super) const QUEUE: &str = "dq.schedules";

/// The stored form's version. Raise it for each addition that earlier versions must not drop, and
/// for each new value form, which they would take for damage.
const FORMAT: u32 = 1;

/// How long a declared schedule runs on without a declaring process.
pub(super) const ORPHAN_GRACE: Duration = Duration::from_secs(24 * 3_600);

/// How often processes refresh their declarations.
pub(super) const SEEN_INTERVAL: Duration = Duration::from_secs(3_600);

/// How long a replaced schedule job's id is pinned: longer than any call that replaces it.
const PINNED_FOR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ScheduleJob {
    format: u32,
    pub(super) spec: ScheduleSpec,
    pub(super) cursor: Timestamp,
    /// While paused, occurrences schedule no job.
    #[serde(default)]
    pub(super) paused: bool,
    /// The occurrence that waits for an earlier job to end; see
    /// [`Overlap::QueueOne`](crate::Overlap::QueueOne).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) waiting: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Timestamp>,
    /// The last occurrence left out by [`skip_next`](Self::skip).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    skipped: Option<Timestamp>,
    /// `None` for a schedule made by a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) declared: Option<Declared>,
    /// A random number from the call that wrote this payload.
    pub(super) writer: u64,
}

/// The payload of a removal job. Readers see no schedule.
pub(super) const REMOVED: &[u8] = br#"{"format":1,"removed":true}"#;

/// The declaration of a schedule by a handler or the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Declared {
    /// Counts declarations that differ from the one before.
    pub(super) generation: u64,
    /// When a declaring process was last seen.
    pub(super) seen: Timestamp,
}

impl Declared {
    /// Returns whether a process declared the schedule lately. A future time comes from a store
    /// clock that was ahead.
    pub(super) fn is_recent(self, now: Timestamp) -> bool {
        now.since(self.seen).max(self.seen.since(now)) < SEEN_INTERVAL
    }
}

impl ScheduleJob {
    pub(super) fn new(spec: ScheduleSpec, cursor: Timestamp) -> Self {
        Self {
            format: FORMAT,
            spec,
            cursor,
            paused: false,
            waiting: None,
            last: None,
            skipped: None,
            declared: None,
            writer: 0,
        }
    }

    pub(super) fn encode(&self) -> Result<Bytes> {
        let json = serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Codec, "the schedule does not encode").source(error)
        })?;
        Ok(json.into())
    }

    pub(super) fn decode(name: &str, json: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = |error: serde_json::Error| {
            let message = format!("the schedule {name} cannot be read: {error}");
            let quoted = name.replace('\'', r"'\''");
            let remedy =
                format!("remove it (`dq schedules rm -- '{quoted}'`), and declare it again");
            Error::new(ErrorKind::Codec, message).remedy(remedy)
        };
        let Format { format } = serde_json::from_slice(json).map_err(damaged)?;
        if format > FORMAT {
            let message =
                format!("the schedule {name} has format {format}; this version reads {FORMAT}");
            return Err(Error::new(ErrorKind::Incompatible, message).remedy("update this process"));
        }
        serde_json::from_slice(json).map_err(damaged)
    }

    /// Changes the specification at `now`, by the store's clock.
    ///
    /// Without missed occurrences the new specification begins at `now`, even if its times differ
    /// and a call skipped old ones. Otherwise it catches up from the last handled occurrence.
    pub(super) fn change_spec(&mut self, name: &str, spec: ScheduleSpec, now: Timestamp) {
        let nominal_now = now - self.spec.offset(name);
        let has_missed = self.spec.next_after(self.cursor).is_some_and(|next| next <= nominal_now);
        let has_other_times = self.spec.times != spec.times;
        self.spec = spec;
        if has_missed {
            return;
        }
        if has_other_times {
            self.skipped = None;
            let begin = now - self.spec.offset(name);
            let stored = self.last.filter(|last| *last <= now);
            self.cursor = stored.map_or(begin, |stored| stored.max(begin));
        } else {
            self.cursor = self.cursor.max(nominal_now);
        }
    }

    /// Goes back to `now`, by the store's clock, if future occurrences count as handled and no call
    /// skipped them. The store's clock was then ahead. Returns whether it was.
    ///
    /// Ids of occurrences that have run are still pinned.
    pub(super) fn rewind(&mut self, name: &str, now: Timestamp) -> bool {
        let not_before_skipped =
            |time: Timestamp| self.skipped.map_or(time, |skipped| skipped.max(time));
        let is_ahead = self.cursor > not_before_skipped(now);
        if is_ahead {
            self.cursor = not_before_skipped(now - self.spec.offset(name));
        }
        is_ahead
    }

    /// Returns the occurrence to skip. `tried` is from an earlier write with a possibly lost
    /// answer. It counts if that write took effect, but not if the occurrence has run.
    pub(super) fn next_to_skip(&self, tried: Option<Timestamp>) -> Option<Timestamp> {
        tried
            .filter(|tried| self.skipped >= Some(*tried))
            .or_else(|| self.spec.next_after(self.cursor))
    }

    pub(super) fn skip(&mut self, occurrence: Timestamp) {
        self.skipped = self.skipped.max(Some(occurrence));
        self.cursor = self.cursor.max(occurrence);
    }

    /// Ends a pause at `now`, by the store's clock. Earlier occurrences do not run later.
    pub(super) fn resume(&mut self, name: &str, now: Timestamp) {
        self.rewind(name, now);
        self.cursor = self.cursor.max(now - self.spec.offset(name));
        self.waiting = None;
        self.paused = false;
    }

    pub(super) fn to_job(
        &self,
        id: JobId,
        name: &str,
        now: Timestamp,
        horizon: Duration,
    ) -> Result<NewJob> {
        let next = self.spec.next_after(self.cursor);
        let next = next.map(|next| next.saturating_add(self.spec.offset(name)));
        // A waiting occurrence asks at once if it may start.
        let due = self.waiting.map(|_| now).into_iter().chain(next).min().ok_or_else(|| {
            let times = &self.spec.times;
            Error::invalid(format!("the schedule {name} ({times}) has no time in the future"))
                .remedy("change its times, or remove it")
        })?;
        let due = due.min(now.saturating_add(horizon));
        schedule_job(id, name, due, self.encode()?)
    }
}

pub(super) fn waiting_in_time(
    spec: &ScheduleSpec,
    waiting: Option<Timestamp>,
    nominal_now: Timestamp,
) -> Option<Timestamp> {
    waiting.filter(|time| spec.deadline.is_none_or(|deadline| nominal_now.since(*time) <= deadline))
}

pub(crate) fn queue() -> QueueName {
    QueueName::new(QUEUE).expect("a valid queue name")
}

pub(super) fn require_support(store: &dyn Backend) -> Result<()> {
    match missing(store.capabilities()) {
        None => Ok(()),
        Some(missing) => {
            let feature = format!("recurring schedules, which need {missing}");
            Err(Error::unsupported(store.name(), &feature))
        }
    }
}

pub(crate) fn is_supported(store: Capabilities) -> bool {
    missing(store).is_none()
}

fn missing(store: Capabilities) -> Option<&'static str> {
    let needed = [
        (store.keys, "keys"),
        (store.browse, "reading of single jobs"),
        (store.cancel, "cancel"),
        (store.again, "next steps of jobs"),
        (store.history, "remembering ended jobs"),
    ];
    needed.into_iter().find_map(|(has, name)| (!has).then_some(name))
}

/// Creates a job of the reserved queue, with the schedule's name as key.
pub(super) fn schedule_job(
    id: JobId,
    name: &str,
    due: Timestamp,
    payload: Bytes,
) -> Result<NewJob> {
    let mut job = NewJob::new(id, queue(), Due::At(due), payload);
    job.key = Some(JobKey::new(name)?);
    // Stops a late process from replacing it again.
    job.remember = PINNED_FOR;
    Ok(job)
}

#[cfg(test)]
pub(super) mod tests {
    use dq_cron::{Cron, Interval};

    use super::*;
    use crate::model::DurationExt;

    /// 2026-03-01T00:00Z, a Sunday.
    pub(crate) const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

    pub(crate) fn schedule_job(times: impl Into<dq_cron::Times>, catch_up: &str) -> ScheduleJob {
        let queue = QueueName::new("REPORT").unwrap();
        let mut spec = ScheduleSpec::new(queue, times, serde_json::Value::Null);
        spec.catch_up = catch_up.parse().unwrap();
        ScheduleJob::new(spec, START)
    }

    #[test]
    fn the_stored_form_is_stable() {
        let json = r#"{"format":1,"spec":{"queue":"REPORT","times":{"every":60000},"payload":null,"catch_up":"last","overlap":"skip"},"cursor":1772323200000,"paused":false,"writer":0}"#;
        let schedule_job = schedule_job(Interval::new(1.minutes()).unwrap(), "last");
        assert_eq!(schedule_job.encode().unwrap(), json);
        let declared = json.replace(
            "\"writer\"",
            r#""waiting":1772323140000,"declared":{"generation":2,"seen":1772323200000},"writer""#,
        );
        let read = ScheduleJob::decode("r", declared.as_bytes()).unwrap();
        assert_eq!(read.encode().unwrap(), declared);
        let later = json.replacen(":1,", ":2,", 1);
        let error = ScheduleJob::decode("r", later.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert_eq!(ScheduleJob::decode("r", b"{").unwrap_err().kind(), ErrorKind::Codec);
    }

    #[test]
    fn a_skip_that_is_tried_again_leaves_one_occurrence_out() {
        let new = || schedule_job(Interval::new(1.minutes()).unwrap(), "last");
        let first = new().next_to_skip(None).unwrap();
        let (mut answer_was_lost, mut has_run) = (new(), new());
        answer_was_lost.skip(first);
        assert_eq!(answer_was_lost.next_to_skip(Some(first)), Some(first));
        has_run.cursor = first;
        assert_eq!(has_run.next_to_skip(Some(first)), Some(first + 1.minutes()));
    }

    #[test]
    fn a_changed_schedule_begins_now_unless_the_old_one_has_missed_something() {
        let daily = |hour: u32| Cron::new(&format!("0 {hour} * * *"), "UTC").unwrap();
        let changed = |now: Timestamp| {
            let mut schedule_job = schedule_job(daily(3), "last");
            schedule_job.change_spec("r", self::schedule_job(daily(5), "last").spec, now);
            schedule_job.spec.next_after(schedule_job.cursor).unwrap().since(START)
        };
        assert_eq!(changed(START + 2.hours()), 5.hours());
        assert_eq!(changed(START + 30.hours()), 5.hours(), "03:00 was missed, so 05:00 is late");
        let mut handled = schedule_job(daily(3), "last");
        handled.cursor = START + 3.hours();
        handled.change_spec("r", schedule_job(daily(5), "last").spec, START + 6.hours());
        let next = handled.spec.next_after(handled.cursor).unwrap().since(START);
        assert_eq!(next, 29.hours(), "the time of today was not missed");
    }
}
