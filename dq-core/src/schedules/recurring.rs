//! Schedules by name: calls that create, change and operate them.

use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;

use super::occurrence::occurrences_between;
use super::view::ScheduleView;
use super::{batch, store};
use crate::backend::{Backend, Scheduled};
use crate::client::Dq;
use crate::config::{ScheduleSettings, payload_json};
use crate::error::{Error, Result};
use crate::model::{CatchUp, Due, Overlap, Queue, QueueName, Timestamp};

const MAX_BACKFILL: usize = 1_000;

/// A schedule by name: define it and [`upsert`](Self::upsert) it, or operate on it.
///
/// # Errors
/// Calls return `InvalidInput` if the name or a part of the specification is invalid, or no
/// occurrence is left; `Unsupported` if the store cannot keep schedules; `Unavailable` if it cannot
/// be reached.
///
/// ```
/// # use dq_core::{Dq, DurationExt};
/// # dq_core::queue!(SYNC_REGION: String);
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> dq_core::Result<()> {
/// # let dq = Dq::connect("memory:").await?;
/// let sync = || dq.recurring::<SYNC_REGION>("sync-eu");
/// sync().every(90.seconds()).payload("eu".to_owned()).jitter(10.seconds()).upsert().await?;
/// assert_eq!(sync().next(3).await?.len(), 3);
/// sync().pause().await?;
/// assert!(sync().remove().await?);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing changes until a method of it is awaited"]
#[derive(Debug)]
pub struct RecurringSchedule<P> {
    dq: Dq,
    name: String,
    queue: Result<QueueName>,
    settings: ScheduleSettings,
    error: Option<Error>,
    payload: PhantomData<fn(P)>,
}

/// The result of a [`RecurringSchedule::backfill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backfilled {
    /// How many jobs were stored.
    pub scheduled: u64,
    /// How many occurrences had a job already: live, dead, or ended with its id still pinned.
    pub existing: u64,
}

impl Dq {
    /// Returns the schedule with this name, for queue `Q`. A name has at most 200 bytes.
    pub fn recurring<Q: Queue>(&self, name: impl Into<String>) -> RecurringSchedule<Q::Payload> {
        let schedule = RecurringSchedule::new(self, Q::queue(), name.into());
        match Q::VERSION {
            Some(version) => schedule.schema_version(version),
            None => schedule,
        }
    }

    /// Returns the schedule with this name, for any queue, with JSON payloads.
    pub fn recurring_in(
        &self,
        queue: impl AsRef<str>,
        name: impl Into<String>,
    ) -> RecurringSchedule<serde_json::Value> {
        RecurringSchedule::new(self, QueueName::new(queue), name.into())
    }
}

impl<P> RecurringSchedule<P> {
    fn new(dq: &Dq, queue: Result<QueueName>, name: String) -> Self {
        let (dq, settings) = (dq.clone(), ScheduleSettings::new());
        Self { dq, name, queue, settings, error: None, payload: PhantomData }
    }

    /// Schedules jobs by a cron expression in an IANA time zone; see [`dq_cron::Cron`].
    pub fn cron(self, expression: &str, zone: &str) -> Self {
        self.with(|settings| settings.cron(expression, zone))
    }

    /// Schedules jobs at the whole multiples of an interval since 1970-01-01T00:00Z.
    pub fn every(self, interval: Duration) -> Self {
        self.with(|settings| settings.every(interval))
    }

    /// Sets each job's payload. Default: the payload of a handler without one.
    pub fn payload(mut self, payload: P) -> Self
    where
        P: Serialize,
    {
        match payload_json(&payload) {
            Ok(json) => self.settings.payload = Some(json),
            Err(error) => self.error = Some(error),
        }
        self
    }

    /// Sets the payload's schema version. Default: the queue type's version, or none without a
    /// type, which is read as 1.
    pub fn schema_version(self, version: u32) -> Self {
        self.with(|settings| settings.schema_version(version))
    }

    /// Sets how to treat missed occurrences. Default [`CatchUp::Last`].
    pub fn catch_up(self, catch_up: CatchUp) -> Self {
        self.with(|settings| settings.catch_up(catch_up))
    }

    /// Sets what to do while an earlier occurrence's job is live. Default [`Overlap::Skip`], or
    /// [`Overlap::Allow`] with [`CatchUp::All`].
    pub fn overlap(self, overlap: Overlap) -> Self {
        self.with(|settings| settings.overlap(overlap))
    }

    /// Sets how late an occurrence may be scheduled. Default: no limit.
    ///
    /// A job scheduled in time still runs, however long it waits for a free runner.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline(deadline))
    }

    /// Delays all occurrences by the same part of this time, derived from the name. Default: no
    /// delay.
    pub fn jitter(self, jitter: Duration) -> Self {
        self.with(|settings| settings.jitter(jitter))
    }

    fn with(self, change: impl FnOnce(ScheduleSettings) -> ScheduleSettings) -> Self {
        Self { settings: change(self.settings), ..self }
    }

    /// Stores the schedule, or changes it to this specification.
    ///
    /// Returns `false` if the store has exactly this one. A declared schedule becomes this call's,
    /// and is never an orphan.
    ///
    /// A new or changed schedule begins with the first occurrence after now. If the old
    /// specification has missed an occurrence, the new one catches up instead.
    pub async fn upsert(self) -> Result<bool> {
        let Self { dq, name, queue, settings, error, .. } = self;
        if let Some(error) = error {
            return Err(error);
        }
        let settings = ScheduleSettings { queue: Some(queue?), ..settings };
        store::upsert(&dq, &name, &settings.spec(&name)?).await
    }

    /// Pauses the schedule: occurrences schedule no jobs, now or later.
    ///
    /// Returns `false` if the schedule does not exist or is already paused.
    pub async fn pause(self) -> Result<bool> {
        store::change(&self.dq, &self.name, |schedule_job| {
            let mut schedule_job = schedule_job.filter(|schedule_job| !schedule_job.paused)?;
            schedule_job.paused = true;
            Some(schedule_job)
        })
        .await
    }

    /// Resumes with the next occurrence after a [`pause`](Self::pause).
    ///
    /// Returns `false` if the schedule does not exist or is not paused.
    pub async fn resume(self) -> Result<bool> {
        let now = self.dq.backend().now().await?;
        store::change(&self.dq, &self.name, |schedule_job| {
            let mut schedule_job = schedule_job.filter(|schedule_job| schedule_job.paused)?;
            schedule_job.resume(&self.name, now);
            Some(schedule_job)
        })
        .await
    }

    /// Skips the first unhandled occurrence. Returns `false` if the schedule does not exist.
    ///
    /// A schedule's last occurrence cannot be skipped: remove the schedule.
    pub async fn skip_next(self) -> Result<bool> {
        let mut skipped = None;
        store::change(&self.dq, &self.name, |schedule_job| {
            let mut schedule_job = schedule_job?;
            let next = schedule_job.next_to_skip(skipped)?;
            skipped = Some(next);
            schedule_job.skip(next);
            Some(schedule_job)
        })
        .await
    }

    /// Schedules a job now, beside the occurrences, even while paused.
    ///
    /// Without [`Overlap::Allow`] it does so only if no job of the schedule is live. Returns `None`
    /// if the schedule does not exist.
    pub async fn run_now(self) -> Result<Option<Scheduled>> {
        let Some((_, schedule_job)) = store::find(&self.dq, &self.name).await? else {
            return Ok(None);
        };
        let now = self.dq.backend().now().await?;
        let mut jobs =
            schedule_job.occurrence_jobs(&self.name, &[(now, Due::NOW)], self.horizon())?;
        for job in &mut jobs {
            job.id = self.dq.new_id();
        }
        let scheduled = self.dq.shared().stores.schedule(jobs).await?;
        Ok(scheduled.into_iter().next())
    }

    /// Schedules the occurrences after `after` and until `until` at once, at most 1,000.
    ///
    /// Ignores [`overlap`](Self::overlap). Occurrences stored before, by the schedule or an earlier
    /// call, are counted separately. Future occurrences are left to the schedule. Fails with
    /// `InvalidInput` if there are more, or no such schedule.
    ///
    /// An occurrence that has run is left out while its job is in the history or its id is pinned.
    /// Ids stay pinned for at least 15 minutes, and as long as the schedule could catch up. An
    /// older occurrence runs again.
    pub async fn backfill(self, after: Timestamp, until: Timestamp) -> Result<Backfilled> {
        let Some((_, schedule_job)) = store::find(&self.dq, &self.name).await? else {
            return Err(Error::invalid(format!("there is no schedule {}", self.name))
                .remedy("check the spelling: `Dq::schedules` lists all"));
        };
        let now = self.dq.backend().now().await?;
        let until = until.min(now - schedule_job.spec.offset(&self.name));
        let occurrences = occurrences_between(&schedule_job.spec, after, until, MAX_BACKFILL + 1);
        if occurrences.len() > MAX_BACKFILL {
            let message =
                format!("the schedule {} has more than {MAX_BACKFILL} occurrences", self.name);
            return Err(Error::invalid(message).remedy("backfill a shorter time"));
        }
        // A time instead of zero delay: an earlier call's job then has another due time.
        let occurrences: Vec<_> = occurrences.into_iter().map(|time| (time, now.into())).collect();
        let mut jobs = schedule_job.occurrence_jobs(&self.name, &occurrences, self.horizon())?;
        for job in &mut jobs {
            job.key = None;
        }
        let scheduled = batch::schedule(&self.dq, jobs).await?;
        let is_new = |job: &&Scheduled| job.is_stored() && job.due() == now;
        let new = scheduled.iter().filter(is_new).count();
        Ok(Backfilled { scheduled: new as u64, existing: (scheduled.len() - new) as u64 })
    }

    /// Returns when the next occurrences are due, at most `count`.
    ///
    /// Includes missed occurrences and a paused schedule's. Returns fewer if there are no more, or
    /// no such schedule.
    pub async fn next(self, count: usize) -> Result<Vec<Timestamp>> {
        let Some((_, schedule_job)) = store::find(&self.dq, &self.name).await? else {
            return Ok(Vec::new());
        };
        let offset = schedule_job.spec.offset(&self.name);
        let times =
            occurrences_between(&schedule_job.spec, schedule_job.cursor, Timestamp::MAX, count);
        Ok(times.into_iter().map(|time| time.saturating_add(offset)).collect())
    }

    /// Returns the stored schedule.
    pub async fn get(self) -> Result<Option<ScheduleView>> {
        let Some((view, _)) = store::find(&self.dq, &self.name).await? else { return Ok(None) };
        let now = self.dq.backend().now().await?;
        ScheduleView::read(self.name, &view, now).map(Some)
    }

    /// Removes the schedule. Returns `false` if it does not exist.
    ///
    /// Unfinished jobs from earlier occurrences still run. A declared schedule is back when its
    /// program starts again.
    pub async fn remove(self) -> Result<bool> {
        store::remove(&self.dq, &self.name).await
    }

    fn horizon(&self) -> Duration {
        self.dq.shared().limits.horizon
    }
}
