//! Creates and changes schedules, and operates on them.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;

use super::plan::{occurrences_between, plan};
use super::ticker::{self, ORPHAN_GRACE, SEEN_INTERVAL, Ticker, require_support};
use super::{batch, store};
use crate::backend::Scheduled;
use crate::client::Dq;
use crate::config::{ScheduleSettings, payload_json};
use crate::error::{Error, Result};
use crate::model::schedule::occurrence_id;
use crate::model::{
    CatchUp, Due, JobKey, JobState, JobView, Overlap, Queue, QueueName, ScheduleSpec, Timestamp,
};

/// Maximum number of occurrences of one [`Recurring::backfill`].
const MAX_BACKFILL: usize = 1_000;

/// A schedule that processes declare counts as orphaned if none has done so for this long.
const ORPHANED_AFTER: Duration = SEEN_INTERVAL.saturating_mul(3);

/// What a [`Recurring::backfill`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backfilled {
    /// Number of jobs that it has stored.
    pub scheduled: u64,
    /// Number of occurrences whose job was there before: it waits, runs, is dead, or has ended and its id
    /// is pinned still.
    pub existing: u64,
}

/// A schedule by its name: give it a recurrence and [`upsert`](Self::upsert) it, or operate on it.
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
pub struct Recurring<P> {
    dq: Dq,
    name: String,
    queue: Result<QueueName>,
    settings: ScheduleSettings,
    /// The error of the payload.
    error: Option<Error>,
    payload: PhantomData<fn(P)>,
}

/// A schedule in the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecurringView {
    /// The name of the schedule.
    pub name: String,
    /// The specification.
    pub spec: ScheduleSpec,
    /// Whether its occurrences schedule no jobs.
    pub paused: bool,
    /// When the schedule is looked at next: at its next occurrence, or earlier while an occurrence
    /// waits for the job of an earlier one; if it has stopped, when it looks for a declaration
    /// again.
    pub next_due: Timestamp,
    /// The last occurrence whose job was stored, by the time of the recurrence; `None` if none was.
    pub last_occurrence: Option<Timestamp>,
    /// For a schedule that a program declares: how many declarations have differed from the one
    /// before, this one included. `None` if it was made by a call of the program.
    pub generation: Option<u64>,
    /// Whether no process has declared the schedule for three hours, although one did before. It
    /// stops after a day, until a process declares it again.
    pub orphaned: bool,
    /// Whether it has stopped, because no process has declared it for a day.
    pub stopped: bool,
    /// The last occurrence that was handled, by the time of the recurrence.
    pub(crate) cursor: Timestamp,
    /// The occurrence that waits until the job of an earlier one has ended.
    waiting: Option<Timestamp>,
}

impl Dq {
    /// The schedule with this name, of jobs of the queue `Q`. A name has at most 200 bytes.
    pub fn recurring<Q: Queue>(&self, name: impl Into<String>) -> Recurring<Q::Payload> {
        let schedule = Recurring::new(self, Q::queue(), name.into());
        match Q::VERSION {
            Some(version) => schedule.schema_version(version),
            None => schedule,
        }
    }

    /// The schedule with this name, of jobs of any queue by its name, with payloads as JSON.
    pub fn recurring_in(
        &self,
        queue: impl AsRef<str>,
        name: impl Into<String>,
    ) -> Recurring<serde_json::Value> {
        Recurring::new(self, QueueName::new(queue), name.into())
    }

    /// All schedules of the main store, the next due first, without those that cannot be read: see
    /// [`unreadable_schedules`](Self::unreadable_schedules).
    ///
    /// # Errors
    /// `Unsupported` if the store cannot keep schedules, `Unavailable` if it cannot be reached.
    pub async fn recurring_schedules(&self) -> Result<Vec<RecurringView>> {
        require_support(&**self.backend())?;
        let mut views: Vec<_> =
            self.stored_schedules().await?.into_values().filter_map(Result::ok).collect();
        views.sort_by_key(|view| view.next_due);
        Ok(views)
    }

    /// The schedules of the main store that cannot be read, by their names: `Incompatible` if a later
    /// version has written one, `Codec` if it is damaged. They schedule no jobs of this process.
    ///
    /// # Errors
    /// As of [`recurring_schedules`](Self::recurring_schedules).
    pub async fn unreadable_schedules(&self) -> Result<BTreeMap<String, Error>> {
        require_support(&**self.backend())?;
        let schedules = self.stored_schedules().await?.into_iter();
        Ok(schedules.filter_map(|(name, view)| Some((name, view.err()?))).collect())
    }

    /// All schedules of the main store by their names, with the errors of those that cannot be read.
    pub(crate) async fn stored_schedules(&self) -> Result<BTreeMap<String, Result<RecurringView>>> {
        let queue = self.queue(ticker::QUEUE)?;
        let now = store::now(self).await?;
        let mut views = BTreeMap::new();
        // In the order in which a ticker passes through the states, and the first again, so that
        // one that moves meanwhile is found.
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Scheduled]
        {
            let mut after = None;
            loop {
                let page = queue.browse(state).limit(1_000).after(after).await?;
                for view in page.jobs.iter().filter(|view| view.job.payload != ticker::REMOVED) {
                    let name = view.job.key.as_ref().map(JobKey::to_string).unwrap_or_default();
                    views.insert(name.clone(), RecurringView::read(name, view, now));
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(views)
    }
}

impl RecurringView {
    fn read(name: String, view: &JobView, now: Timestamp) -> Result<Self> {
        let ticker = Ticker::decode(&name, &view.job.payload)?;
        let Ticker { spec, paused, declared, cursor, waiting, last, .. } = ticker;
        Ok(Self {
            name,
            spec,
            paused,
            next_due: view.job.due,
            last_occurrence: last,
            generation: declared.map(|declared| declared.generation),
            orphaned: declared.is_some_and(|declared| now.since(declared.seen) > ORPHANED_AFTER),
            stopped: declared.is_some_and(|declared| now.since(declared.seen) > ORPHAN_GRACE),
            cursor,
            waiting,
        })
    }

    /// The job of the last occurrence: its state, and how it has ended. `None` if there was none, or
    /// the store does not have it any more; how long it keeps ended jobs is a setting of the queue.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached.
    pub async fn last_job(&self, dq: &Dq) -> Result<Option<JobView>> {
        let Some(occurrence) = self.last_occurrence else { return Ok(None) };
        dq.queue(&self.spec.queue)?.get(occurrence_id(&self.name, occurrence)).await
    }

    /// The occurrences that its ticker schedules if it runs at `now`, and the last one that has been
    /// handled then, by the times of the recurrence.
    pub(crate) fn occurrences_at(&self, now: Timestamp) -> (Vec<Timestamp>, Timestamp) {
        let nominal_now = now - self.spec.offset(&self.name);
        let plan = plan(&self.spec, self.cursor, nominal_now);
        let is_in_time = |time: &Timestamp| {
            self.spec.deadline.is_none_or(|deadline| nominal_now.since(*time) <= deadline)
        };
        let waiting = self.waiting.filter(is_in_time);
        (waiting.into_iter().chain(plan.occurrences).collect(), plan.cursor)
    }
}

impl<P> Recurring<P> {
    fn new(dq: &Dq, queue: Result<QueueName>, name: String) -> Self {
        let (dq, settings) = (dq.clone(), ScheduleSettings::new());
        Self { dq, name, queue, settings, error: None, payload: PhantomData }
    }

    /// At the times of a cron expression in a time zone of the IANA database; see
    /// [`dq_cron::Cron`].
    pub fn cron(self, expression: &str, zone: &str) -> Self {
        self.with(|settings| settings.cron(expression, zone))
    }

    /// At the whole multiples of an interval since 1970-01-01T00:00Z.
    pub fn every(self, interval: Duration) -> Self {
        self.with(|settings| settings.every(interval))
    }

    /// The payload of each job; by default that of a handler without a payload.
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

    /// The version of the payload's schema; that of the queue's type by default, and none without a
    /// type, which is read as 1.
    pub fn schema_version(self, version: u32) -> Self {
        self.with(|settings| settings.schema_version(version))
    }

    /// What happens to occurrences that were missed; [`CatchUp::Last`] by default.
    pub fn catch_up(self, catch_up: CatchUp) -> Self {
        self.with(|settings| settings.catch_up(catch_up))
    }

    /// What happens while the job of an earlier occurrence is live; [`Overlap::Skip`] by default, or
    /// [`Overlap::Allow`] with [`CatchUp::All`].
    pub fn overlap(self, overlap: Overlap) -> Self {
        self.with(|settings| settings.overlap(overlap))
    }

    /// How late an occurrence may be scheduled; at any time by default. A job that is scheduled in
    /// time and then waits for a free runner still runs.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline(deadline))
    }

    /// Makes all occurrences later by the same part of this time, which depends on the name; by
    /// default, they are not later.
    pub fn jitter(self, jitter: Duration) -> Self {
        self.with(|settings| settings.jitter(jitter))
    }

    fn with(self, change: impl FnOnce(ScheduleSettings) -> ScheduleSettings) -> Self {
        Self { settings: change(self.settings), ..self }
    }

    /// Stores the schedule, or changes it to this specification. Returns `false` if the store has
    /// exactly this one already. One that was declared becomes that of this call, which never is an
    /// orphan.
    ///
    /// A new schedule begins with the first occurrence after now, and so does a changed one, unless
    /// its old specification has missed an occurrence: then the new one catches up.
    ///
    /// # Errors
    /// `InvalidInput` if the name, the recurrence or another part is invalid, or if the recurrence
    /// has no time in the future; `Unsupported` if the store lacks a capability that schedules need;
    /// `Unavailable` if it cannot be reached.
    pub async fn upsert(self) -> Result<bool> {
        let Self { dq, name, queue, settings, error, .. } = self;
        if let Some(error) = error {
            return Err(error);
        }
        let settings = ScheduleSettings { queue: Some(queue?), ..settings };
        store::upsert(&dq, &name, &settings.spec(&name)?).await
    }

    /// Stops the jobs of the occurrences from now on. Those that come due meanwhile do not run
    /// later. Returns `false` if there is no such schedule, or it is paused already.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached.
    pub async fn pause(self) -> Result<bool> {
        store::change(&self.dq, &self.name, |ticker| {
            let mut ticker = ticker.filter(|ticker| !ticker.paused)?;
            ticker.paused = true;
            Some(ticker)
        })
        .await
    }

    /// Goes on with the next occurrence after a [`pause`](Self::pause). Returns `false` if there is
    /// no such schedule, or it is not paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(self) -> Result<bool> {
        let now = store::now(&self.dq).await?;
        store::change(&self.dq, &self.name, |ticker| {
            let mut ticker = ticker.filter(|ticker| ticker.paused)?;
            ticker.resume(&self.name, now);
            Some(ticker)
        })
        .await
    }

    /// Leaves the first occurrence out that was not handled yet. Returns `false` if there is no such
    /// schedule.
    ///
    /// # Errors
    /// As [`pause`](Self::pause), and `InvalidInput` for the last occurrence of a schedule that ends:
    /// [remove](Self::remove) it.
    pub async fn skip_next(self) -> Result<bool> {
        let mut skipped = None;
        store::change(&self.dq, &self.name, |ticker| {
            let mut ticker = ticker?;
            let next = ticker.next_to_skip(skipped)?;
            skipped = Some(next);
            ticker.skip(next);
            Some(ticker)
        })
        .await
    }

    /// Schedules a job now, beside the occurrences, also of a paused schedule; unless the schedule has
    /// [`Overlap::Allow`], only if no job of it is live. Returns `None` if there is no such schedule.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn run_now(self) -> Result<Option<Scheduled>> {
        let Some((_, ticker)) = store::find(&self.dq, &self.name).await? else { return Ok(None) };
        let now = store::now(&self.dq).await?;
        let mut jobs = ticker.occurrence_jobs(&self.name, &[(now, Due::NOW)], self.horizon())?;
        for job in &mut jobs {
            job.id = self.dq.new_id();
        }
        let scheduled = self.dq.shared().stores.schedule(jobs).await?;
        Ok(scheduled.into_iter().next())
    }

    /// Schedules the occurrences after `after` and until `until`, at most 1,000, all at once and
    /// whatever [`overlap`](Self::overlap) says. Those that are stored already, by the schedule or by an
    /// earlier call, are counted apart.
    ///
    /// Those that are not due yet are left to the schedule, which runs them at their times.
    /// One that has run is left out while its id is pinned (for at least 15 minutes, and for as long
    /// as the schedule could catch up on it), or its job is in the history. An older one runs again.
    ///
    /// # Errors
    /// `InvalidInput` if there are more occurrences or no such schedule; `Unavailable` if the store
    /// cannot be reached.
    pub async fn backfill(self, after: Timestamp, until: Timestamp) -> Result<Backfilled> {
        let Some((_, ticker)) = store::find(&self.dq, &self.name).await? else {
            return Err(Error::invalid(format!("there is no schedule {}", self.name)));
        };
        let now = store::now(&self.dq).await?;
        let until = until.min(now - ticker.spec.offset(&self.name));
        let occurrences = occurrences_between(&ticker.spec, after, until, MAX_BACKFILL + 1);
        if occurrences.len() > MAX_BACKFILL {
            let message =
                format!("the schedule {} has more than {MAX_BACKFILL} occurrences", self.name);
            return Err(Error::invalid(message).remedy("backfill a shorter time"));
        }
        // A time, and not a delay of zero: the job of an earlier call is one with another due time.
        let occurrences: Vec<_> = occurrences.into_iter().map(|time| (time, now.into())).collect();
        let mut jobs = ticker.occurrence_jobs(&self.name, &occurrences, self.horizon())?;
        for job in &mut jobs {
            job.key = None;
        }
        let scheduled = batch::schedule(&self.dq, jobs).await?;
        let is_new = |job: &&Scheduled| job.is_stored() && job.due() == now;
        let new = scheduled.iter().filter(is_new).count();
        Ok(Backfilled { scheduled: new as u64, existing: (scheduled.len() - new) as u64 })
    }

    /// When the next occurrences are due, at most `count`; fewer if there are no more, or no such
    /// schedule. Those that were missed and those of a paused schedule are included.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn next(self, count: usize) -> Result<Vec<Timestamp>> {
        let Some((_, ticker)) = store::find(&self.dq, &self.name).await? else {
            return Ok(Vec::new());
        };
        let offset = ticker.spec.offset(&self.name);
        let times = occurrences_between(&ticker.spec, ticker.cursor, Timestamp::MAX, count);
        Ok(times.into_iter().map(|time| time.saturating_add(offset)).collect())
    }

    /// The schedule in the store.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn get(self) -> Result<Option<RecurringView>> {
        let Some((view, _)) = store::find(&self.dq, &self.name).await? else { return Ok(None) };
        let now = store::now(&self.dq).await?;
        RecurringView::read(self.name, &view, now).map(Some)
    }

    /// Removes the schedule. Jobs of earlier occurrences that have not ended still run. One that a
    /// program declares is back when that program starts again. Returns `false` if there is no such
    /// schedule.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn remove(self) -> Result<bool> {
        store::remove(&self.dq, &self.name).await
    }

    fn horizon(&self) -> Duration {
        self.dq.shared().limits.horizon
    }
}
