//! An overview of all queues.

use std::collections::BTreeMap;

use dq_core::{
    Backend, Histogram, JobState, LatenessStatus, QueueName, QueueStats, RegisteredRunner,
    RunnerInfo, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::error::{OpsError, Result};
use crate::json::millis;
use crate::limits::LimitsView;
use crate::objective::ObjectiveView;
use crate::openapi;
use crate::ops::Session;
use crate::runners::Quantiles;
use crate::text;

/// All queues at one point in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Overview {
    /// The time by the store's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// The store type, such as `sqlite`.
    pub store: String,
    /// Runner count; `None` if the store keeps no announcements.
    pub runners: Option<u64>,
    /// Jobs that the runners could start now. All queues share these slots.
    pub free_slots: Option<u64>,
    /// The queues with jobs or runners, ordered by name.
    pub queues: Vec<QueueSummary>,
}

/// A queue with its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct QueueSummary {
    /// The name.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// Jobs not yet due.
    pub scheduled: u64,
    /// Due jobs that wait for a runner.
    pub ready: u64,
    /// Running jobs.
    pub running: u64,
    /// Dead jobs: they run again only if an operator replays them.
    pub dead: u64,
    /// Whether the queue is paused.
    pub paused: bool,
    /// The limits for all processes together; `None` if there are none.
    #[serde(default)]
    pub limits: Option<LimitsView>,
    /// Ready jobs that a limit for all processes holds back now. Not counted: jobs of full groups.
    #[serde(default)]
    pub held_back: u64,
    /// The earliest due time among scheduled and ready jobs.
    #[serde(with = "text::option")]
    pub next_due: Option<Timestamp>,
    /// How long the oldest ready job has waited, in milliseconds; 0 without one.
    pub oldest_ready_ms: u64,
    /// Runners that serve the queue; `None` for the framework's queues, and if the store keeps no
    /// announcements.
    pub runners: Option<u64>,
    /// Jobs that the queue's runners could start now.
    pub free_slots: Option<u64>,
    /// How late handlers started in the last five minutes.
    pub lateness: Option<Quantiles>,
    /// How long handlers ran in the last five minutes.
    pub run_time: Option<Quantiles>,
    /// How well the queue meets its lateness objective; `None` if it has none.
    pub objective: Option<ObjectiveView>,
    /// Jobs stored so far; `None` if the store does not count them.
    pub created_total: Option<u64>,
    /// Jobs done so far.
    pub done_total: Option<u64>,
}

impl QueueSummary {
    /// Returns the job count in a state; `None` for ended jobs, which stores do not count.
    #[must_use]
    pub fn count(&self, state: JobState) -> Option<u64> {
        match state {
            JobState::Scheduled => Some(self.scheduled),
            JobState::Ready => Some(self.ready),
            JobState::Running => Some(self.running),
            JobState::Dead => Some(self.dead),
            _ => None,
        }
    }

    /// Returns the runs per minute over the last five minutes.
    #[must_use]
    pub fn runs_per_minute(&self) -> f64 {
        self.lateness.map_or(0.0, |lateness| lateness.count as f64 / 5.0)
    }

    fn new(
        stats: &QueueStats,
        now: Timestamp,
        served: Option<&Served>,
        objectives: &[LatenessStatus],
    ) -> Self {
        let oldest = stats.next_due.filter(|_| stats.ready > 0).map(|due| now.since(due));
        Self {
            queue: stats.queue.clone(),
            scheduled: stats.scheduled,
            ready: stats.ready,
            running: stats.running,
            dead: stats.dead,
            paused: stats.paused,
            limits: LimitsView::of(&stats.flow),
            held_back: if stats.limit().is_some() { stats.ready } else { 0 },
            next_due: stats.next_due,
            oldest_ready_ms: oldest.map_or(0, millis),
            runners: served.map(|served| served.runners),
            free_slots: served.map(|served| served.free_slots(stats.running)),
            lateness: served.and_then(|served| Quantiles::of(&served.lateness)),
            run_time: served.and_then(|served| Quantiles::of(&served.run_time)),
            objective: objectives
                .iter()
                .find(|status| status.queue == stats.queue)
                .map(ObjectiveView::from),
            created_total: stats.totals.map(|totals| totals.created),
            done_total: stats.totals.map(|totals| totals.done),
        }
    }
}

/// Sums of a queue's runner announcements.
#[derive(Debug, Default)]
struct Served {
    runners: u64,
    free_slots: u64,
    slots: u64,
    /// Whether uncounted runners may serve the queue.
    incomplete: bool,
    lateness: Histogram,
    run_time: Histogram,
}

impl Served {
    fn free_slots(&self, running: u64) -> u64 {
        free_now(self.free_slots, self.slots, running, self.incomplete)
    }
}

/// How many of the announced free slots are still free beside the store's running jobs, because
/// announcements are some seconds old. Runners that are not counted (`incomplete`) may run some of
/// these jobs.
pub(crate) fn free_now(announced: u64, slots: u64, running: u64, incomplete: bool) -> u64 {
    match incomplete {
        true => announced,
        false => announced.min(slots.saturating_sub(running)),
    }
}

fn served_queues(runners: &[RegisteredRunner]) -> BTreeMap<QueueName, Served> {
    let mut queues: BTreeMap<QueueName, Served> = BTreeMap::new();
    for info in runners.iter().filter_map(|runner| runner.info.as_ref().ok()) {
        for queue in &info.queues {
            let served = queues.entry(queue.queue.clone()).or_default();
            served.runners += 1;
            let free = info.free_slots(&queue.queue).unwrap_or_default();
            served.free_slots = served.free_slots.saturating_add(free);
            let slots = queue.concurrency.min(info.concurrency);
            served.slots = served.slots.saturating_add(slots);
            served.lateness.merge(&queue.lateness);
            served.run_time.merge(&queue.run_time);
        }
    }
    let leaves_out = |runner: &RegisteredRunner| {
        runner.info.as_ref().map_or(true, |info| info.omitted_queues > 0)
    };
    if runners.iter().any(leaves_out) {
        queues.values_mut().for_each(|served| served.incomplete = true);
    }
    queues
}

/// Counts the jobs that the runners could start now. The queues of a runner share its slots.
fn free_slots(runners: &[RegisteredRunner]) -> u64 {
    let free_in_runner = |info: &RunnerInfo| {
        let unused = info.concurrency.saturating_sub(info.running);
        if info.omitted_queues > 0 && !info.stopping {
            return unused;
        }
        let in_queues = info.queues.iter().filter_map(|queue| info.free_slots(&queue.queue));
        in_queues.fold(0, u64::saturating_add).min(unused)
    };
    let readable = runners.iter().filter_map(|runner| runner.info.as_ref().ok());
    // Saturating, because other programs may have written the numbers.
    readable.map(free_in_runner).fold(0, u64::saturating_add)
}

pub(crate) struct Observed {
    /// The queues with jobs or runners, ordered by name.
    pub(crate) stats: Vec<QueueStats>,
    /// `None` if the store keeps no announcements.
    pub(crate) runners: Option<Vec<RegisteredRunner>>,
    pub(crate) now: Timestamp,
}

impl Session {
    pub(crate) async fn observed(&self) -> Result<Observed> {
        let runners = self.registered().await?;
        let mut stats = self.ops.dq().stats().await?;
        let now = self.now().await?;
        let infos = runners.iter().flatten().filter_map(|runner| runner.info.as_ref().ok());
        for served in infos.flat_map(|info| &info.queues) {
            // A store may omit a queue after its last job has ended.
            if !stats.iter().any(|known| known.queue == served.queue) {
                stats.push(QueueStats::empty(served.queue.clone()));
            }
        }
        stats.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(Observed { stats, runners, now })
    }

    /// Returns all queues with jobs or runners.
    ///
    /// Each call adds a reading to [`past`](Self::past).
    pub async fn overview(&self) -> Result<Overview> {
        let Observed { stats, runners, now } = self.observed().await?;
        let queues = self.summaries(&stats, runners.as_deref(), now).await?;
        let late = queues.iter().filter_map(|it| Some((it.queue.clone(), it.lateness?.p99_ms)));
        self.ops.watch.record(now, &stats, runners.as_deref().unwrap_or_default(), late);
        let store = self.ops.dq().backend().name().to_owned();
        let free_slots = runners.as_deref().map(free_slots);
        let runners = runners.map(|runners| runners.len() as u64);
        Ok(Overview { at: now, store, runners, free_slots, queues })
    }

    /// Returns one queue with its counts.
    ///
    /// # Errors
    /// `NotFound` if the queue has never had a job, is not paused and has no runner.
    pub async fn queue(&self, queue: &QueueName) -> Result<QueueSummary> {
        let stats = self.ops.dq().queue(queue)?.stats().await?;
        let (runners, now) = (self.registered().await?, self.now().await?);
        let summaries = self.summaries(std::slice::from_ref(&stats), runners.as_deref(), now);
        let is_used = |summary: &QueueSummary| {
            stats.stored() > 0
                || stats.paused
                || stats.totals.is_some_and(|totals| totals.created > 0)
                || summary.runners.is_some_and(|runners| runners > 0)
        };
        let found = summaries.await?.pop().filter(is_used);
        found.ok_or_else(|| OpsError::NotFound { queue: queue.clone(), job: None })
    }

    async fn summaries(
        &self,
        stats: &[QueueStats],
        runners: Option<&[RegisteredRunner]>,
        now: Timestamp,
    ) -> Result<Vec<QueueSummary>> {
        let served = runners.map(served_queues);
        let none = Served::default();
        // Runners do not announce the framework's queues.
        let served = |queue: &QueueName| {
            let served = served.as_ref().filter(|_| !queue.is_reserved())?;
            Some(served.get(queue).unwrap_or(&none))
        };
        let objectives = self.ops.dq().lateness_in(stats, runners, now).await?;
        let summary = |it: &QueueStats| QueueSummary::new(it, now, served(&it.queue), &objectives);
        Ok(stats.iter().map(summary).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_jobs_take_announced_free_slots() {
        assert_eq!(free_now(2, 2, 0, false), 2);
        assert_eq!(free_now(2, 2, 1, false), 1);
        assert_eq!(free_now(2, 2, 9, false), 0);
        assert_eq!(free_now(1, 4, 2, false), 1, "other jobs of the runner take slots, too");
        assert_eq!(free_now(2, 2, 9, true), 2, "uncounted runners may run them");
    }
}
