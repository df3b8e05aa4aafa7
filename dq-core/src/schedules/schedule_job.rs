//! The schedule job, and its handler.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::batch::Batches;
use super::plan::{ON_TIME, Plan, plan};
use crate::backend::{Backend, Capabilities, Scheduled};
use crate::client::Dq;
use crate::config::QueuePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, HandlerResult, JobContext, JobError, Outcome};
use crate::model::schedule::{occurrence_id, successor_id};
use crate::model::{
    Backoff, CatchUp, Due, DurationExt, Headers, Job, JobId, JobKey, JobRef, JobState, NewJob,
    Overlap, QueueName, ScheduleSpec, Timestamp,
};

pub(super) const QUEUE: &str = "dq.schedules";

/// The stored form's version. Raise it for each addition that earlier versions must not drop, and
/// for each new value form, which they would take for damage.
const FORMAT: u32 = 1;

/// How long an unreadable schedule job waits for another runner.
const UNREADABLE: Duration = Duration::from_secs(60);

/// How long a declared schedule runs on without a declaring process.
pub(super) const ORPHAN_GRACE: Duration = Duration::from_secs(24 * 3_600);

/// How often processes refresh their declarations.
pub(super) const SEEN_INTERVAL: Duration = Duration::from_secs(3_600);

/// How long a stopped schedule waits before it looks for a declaration again.
const ORPHAN_WAIT: Duration = Duration::from_secs(3_600);

/// Extra time to pin an occurrence's id, for a process suspended during its call. After a longer
/// suspension the occurrence may run twice; a longer margin keeps more ids.
const PIN_MARGIN: Duration = Duration::from_secs(15 * 60);

const MAX_PINNED: Duration = Duration::from_secs(400 * 86_400);

/// How long a replaced schedule job's id is pinned: longer than any call that replaces it.
const PINNED_FOR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ScheduleJob {
    format: u32,
    pub(super) spec: ScheduleSpec,
    /// The last handled occurrence, by the schedule's time.
    pub(super) cursor: Timestamp,
    /// While paused, occurrences schedule no job.
    #[serde(default)]
    pub(super) paused: bool,
    /// The occurrence that waits for an earlier job to end; see [`Overlap::QueueOne`].
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handled {
    Stored,
    /// An earlier occurrence's job must end first.
    Waits,
    Skipped,
}

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

    fn encode(&self) -> Result<Bytes> {
        let json = serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Codec, "the schedule does not encode").source(error)
        })?;
        Ok(json.into())
    }

    /// Reads a stored schedule job.
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

    pub(super) fn has_time_left(&self) -> bool {
        self.waiting.is_some() || self.spec.next_after(self.cursor).is_some()
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
        })?;
        let due = due.min(now.saturating_add(horizon));
        schedule_job(id, name, due, self.encode()?)
    }

    /// Creates jobs for ordered occurrences, due at their own times, or in order until `until`.
    fn due_jobs(
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

    fn outcome(&self, name: &str, occurrence: Timestamp, scheduled: Scheduled) -> Handled {
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

pub(crate) fn queue() -> QueueName {
    QueueName::new(QUEUE).expect("a valid queue name")
}

pub(crate) fn handler(dq: &Dq) -> Handler {
    let (dq, batches) = (dq.clone(), Arc::new(Batches::new(dq)));
    let run = move |ctx: JobContext| {
        let (dq, batches) = (dq.clone(), Arc::clone(&batches));
        async move { tick(&dq, &batches, &ctx).await.map_err(JobError::Failed) }
    };
    Handler::internal(queue(), "dq::recurring", Arc::new(move |ctx| Box::pin(run(ctx))))
}

/// The policy for schedule jobs: no failure ends a schedule.
pub(crate) fn policy() -> QueuePolicy {
    QueuePolicy {
        // Outside the runner's total. Several batches, so that one is claimed while another is
        // stored.
        concurrency: 256,
        max_attempts: u32::MAX,
        timeout: 1.minutes(),
        // A schedule job runs for milliseconds. After a crash, the schedule stands still for the
        // lease.
        lease: 5.seconds(),
        backoff: Backoff { initial: 1.seconds(), max: 1.minutes(), ..Backoff::default() },
        max_losses: u32::MAX,
        late: None,
        lateness: None,
    }
}

/// Schedules the jobs for all occurrences until now, and moves to the next one.
async fn tick(dq: &Dq, batches: &Batches, ctx: &JobContext) -> HandlerResult {
    let name = ctx.key().map(JobKey::as_str).ok_or("a schedule job without a key")?;
    if ctx.raw_payload() == REMOVED {
        // The process that began the removal has ended.
        return Ok(Outcome::Done);
    }
    let mut schedule_job = match ScheduleJob::decode(name, ctx.raw_payload()) {
        Ok(schedule_job) => schedule_job,
        Err(error) => {
            tracing::error!(schedule = name, %error, "the schedule waits for another runner");
            return Ok(Outcome::snooze(UNREADABLE));
        }
    };
    if is_in_drained_store(dq, ctx).await? {
        return move_to_main_store(dq, ctx, name).await;
    }
    // By the store's clock.
    let now = ctx.due().saturating_add(ctx.lateness());
    if schedule_job.declared.is_some_and(|declared| now.since(declared.seen) > ORPHAN_GRACE) {
        tracing::warn!(
            schedule = name,
            "no process declares this schedule any more; it has stopped: remove it, or declare it"
        );
        return Ok(Outcome::snooze(ORPHAN_WAIT));
    }
    let offset = schedule_job.spec.offset(name);
    let nominal_now = now - offset;
    let Plan { mut occurrences, has_missed, cursor, next } =
        plan(&schedule_job.spec, schedule_job.cursor, nominal_now);
    if has_missed {
        tracing::warn!(schedule = name, until = cursor.as_millis(), "occurrences were missed");
    }
    let is_in_time = |time: &Timestamp| {
        schedule_job.spec.deadline.is_none_or(|deadline| nominal_now.since(*time) <= deadline)
    };
    let waiting = schedule_job.waiting.take().filter(is_in_time);
    occurrences.splice(0..0, waiting);
    if schedule_job.paused {
        occurrences.clear();
    }
    // A late policy covers the wait for a runner, not the wait caused by the schedule.
    let is_on_time = |first: &Timestamp| nominal_now.since(*first) <= ON_TIME;
    let has_waited = waiting.is_some() || !occurrences.first().is_none_or(is_on_time);
    let due_from = has_waited.then_some(now);
    let jobs = schedule_job.due_jobs(name, &occurrences, due_from, dq.shared().limits.horizon)?;
    let scheduled = if jobs.is_empty() { Vec::new() } else { batches.schedule(jobs).await? };
    let handled = occurrences.iter().copied().zip(scheduled);
    for (occurrence, scheduled) in handled {
        match schedule_job.outcome(name, occurrence, scheduled) {
            Handled::Stored => schedule_job.last = Some(occurrence),
            Handled::Waits if schedule_job.waiting.is_none() => {
                schedule_job.waiting = Some(occurrence)
            }
            Handled::Waits | Handled::Skipped => tracing::info!(
                schedule = name,
                occurrence = occurrence.as_millis(),
                "skipped: an earlier occurrence has not ended"
            ),
        }
    }
    schedule_job.cursor = cursor;
    let next = next.map(|next| next.saturating_add(offset));
    let retry = schedule_job.waiting.map(|waiting| {
        // A tenth of the wait so far: a soon start with few calls.
        let wait = nominal_now.since(waiting) / 10;
        now.saturating_add(wait.clamp(1.seconds(), 1.minutes()))
    });
    let Some(due) = next.into_iter().chain(retry).min() else {
        tracing::info!(schedule = name, "the schedule has ended: no time is left");
        return Ok(Outcome::Done);
    };
    let due = due.min(now.saturating_add(dq.shared().limits.horizon));
    Ok(Outcome::Again(Due::At(due), schedule_job.encode()?))
}

async fn is_in_drained_store(dq: &Dq, ctx: &JobContext) -> Result<bool> {
    let stores = &dq.shared().stores;
    if stores.drain.is_empty() {
        return Ok(false);
    }
    let found = stores.main.get(&JobRef::new(queue(), ctx.id())).await?;
    Ok(found.is_none_or(|view| view.state != JobState::Running))
}

/// Moves the schedule job to the main store, due at once, unless the schedule is already there.
async fn move_to_main_store(dq: &Dq, ctx: &JobContext, name: &str) -> HandlerResult {
    let id = successor_id(ctx.id());
    let job = schedule_job(id, name, ctx.due(), ctx.raw_payload().clone())?;
    let moved = dq.shared().stores.main.schedule(vec![job]).await?;
    tracing::info!(schedule = name, ?moved, "the schedule moves to the main store");
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use dq_cron::{Cron, Interval};

    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

    fn schedule_job(times: impl Into<dq_cron::Times>, catch_up: &str) -> ScheduleJob {
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
        // START is a Sunday at 00:00; the next times are a minute and then a week later.
        let twice_a_week =
            |catch_up| schedule_job(Cron::new("0,1 0 * * SUN", "UTC").unwrap(), catch_up);
        assert_eq!(pinned(&twice_a_week("last")), 1.minutes());
        assert_eq!(pinned(&twice_a_week("all:2")), 7.days());
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
