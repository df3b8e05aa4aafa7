//! Schedules as the store has them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::occurrence::plan;
use super::schedule_job::{
    ORPHAN_GRACE, REMOVED, SEEN_INTERVAL, ScheduleJob, queue, require_support, waiting_in_time,
};
use crate::backend::{Backend, BrowseParams};
use crate::client::{Dq, Pages};
use crate::error::{Error, Result};
use crate::model::schedule::occurrence_id;
use crate::model::{JobKey, JobState, JobView, ScheduleSpec, Timestamp};

/// Schedules per store call.
const PAGE: usize = 1_000;

/// How long a declared schedule may go undeclared before it counts as orphaned.
const ORPHANED_AFTER: Duration = SEEN_INTERVAL.saturating_mul(3);

/// A schedule in the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScheduleView {
    /// The schedule's name.
    pub name: String,
    /// The specification.
    pub spec: ScheduleSpec,
    /// Whether the schedule is paused: its occurrences schedule no jobs.
    pub paused: bool,
    /// When the schedule job runs next.
    ///
    /// Usually the next occurrence; earlier while one waits for an earlier one's job. For a stopped
    /// schedule, the next check for a declaration.
    pub next_due: Timestamp,
    /// The last occurrence with a stored job, by the schedule's time; `None` if there is none.
    pub last_occurrence: Option<Timestamp>,
    /// For a declared schedule, how many declarations differed from the one before, including this
    /// one. `None` for a schedule made by a call.
    pub generation: Option<u64>,
    /// Whether a declared schedule has had no declaring process for three hours.
    ///
    /// It stops after a day, until a process declares it again.
    pub orphaned: bool,
    /// Whether the schedule has stopped, undeclared for a day.
    pub stopped: bool,
    /// The last handled occurrence, by the schedule's time.
    pub(crate) cursor: Timestamp,
    /// The occurrence that waits for an earlier one's job to end.
    waiting: Option<Timestamp>,
}

impl Dq {
    /// Returns all readable schedules in the main store, the next due first.
    ///
    /// For the others, see [`unreadable_schedules`](Self::unreadable_schedules).
    pub async fn schedules(&self) -> Result<Vec<ScheduleView>> {
        require_support(&**self.backend())?;
        let mut views: Vec<_> =
            self.stored_schedules().await?.into_values().filter_map(Result::ok).collect();
        views.sort_by_key(|view| view.next_due);
        Ok(views)
    }

    /// Returns the unreadable schedules in the main store, by name.
    ///
    /// The error is `Incompatible` for a schedule from a later version, `Codec` for a damaged one.
    /// This process schedules no jobs for them.
    pub async fn unreadable_schedules(&self) -> Result<BTreeMap<String, Error>> {
        require_support(&**self.backend())?;
        let schedules = self.stored_schedules().await?.into_iter();
        Ok(schedules.filter_map(|(name, view)| Some((name, view.err()?))).collect())
    }

    pub(crate) async fn stored_schedules(&self) -> Result<BTreeMap<String, Result<ScheduleView>>> {
        let (queue, now) = (queue(), self.backend().now().await?);
        let mut views = BTreeMap::new();
        // In the order a schedule job passes through the states, and the first again, to find a job
        // that moves meanwhile.
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Scheduled]
        {
            let params = BrowseParams::new(&queue, state).limit(PAGE).payloads(true);
            let mut pages = Pages::new(self.backend(), params);
            while let Some(page) = pages.next().await? {
                for view in page.jobs.iter().filter(|view| view.job.payload != REMOVED) {
                    let name = view.job.key.as_ref().map(JobKey::to_string).unwrap_or_default();
                    views.insert(name.clone(), ScheduleView::read(name, view, now));
                }
            }
        }
        Ok(views)
    }
}

impl ScheduleView {
    pub(super) fn read(name: String, view: &JobView, now: Timestamp) -> Result<Self> {
        let schedule_job = ScheduleJob::decode(&name, &view.job.payload)?;
        let ScheduleJob { spec, paused, declared, cursor, waiting, last, .. } = schedule_job;
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

    /// Returns the last occurrence's job, with its state and end.
    ///
    /// Returns `None` if there was none, or the store has dropped it. See the queue's history
    /// setting.
    pub async fn last_job(&self, dq: &Dq) -> Result<Option<JobView>> {
        let Some(occurrence) = self.last_occurrence else { return Ok(None) };
        dq.queue(&self.spec.queue)?.get(occurrence_id(&self.name, occurrence)).await
    }

    pub(crate) fn occurrences_at(&self, now: Timestamp) -> (Vec<Timestamp>, Timestamp) {
        let nominal_now = now - self.spec.offset(&self.name);
        let plan = plan(&self.spec, self.cursor, nominal_now);
        let waiting = waiting_in_time(&self.spec, self.waiting, nominal_now);
        (waiting.into_iter().chain(plan.occurrences).collect(), plan.cursor)
    }
}
