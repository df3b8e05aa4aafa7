//! The store's runners and how quickly they serve each queue.

use dq_core::{
    Histogram, JobState, Priority, QueueName, RegisteredRunner, RunnerInfo, RunnerQueue, Timestamp,
    WorkerInfo,
};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::jobs::JobSummary;
use crate::json::millis;
use crate::openapi;
use crate::ops::Session;
use crate::text;

/// Durations of the last five minutes, in milliseconds.
///
/// Each is exact up to 7 ms and at most a quarter too long above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Quantiles {
    /// Sample count.
    pub count: u64,
    /// The median.
    pub p50_ms: u64,
    /// The 90th percentile.
    pub p90_ms: u64,
    /// The 99th percentile.
    pub p99_ms: u64,
}

impl Quantiles {
    pub(crate) fn of(histogram: &Histogram) -> Option<Self> {
        let millis = |part| histogram.quantile(part).map(millis);
        Some(Self {
            count: histogram.count(),
            p50_ms: millis(0.5)?,
            p90_ms: millis(0.9)?,
            p99_ms: millis(0.99)?,
        })
    }
}

/// A runner that serves the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct RunnerSummary {
    /// The runner name.
    pub name: String,
    /// The host name; empty if unknown.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The runner's `dq` version.
    pub version: String,
    /// The start time by the runner's clock; `None` if its announcement cannot be read.
    #[serde(with = "text::option")]
    pub started: Option<Timestamp>,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// Maximum concurrent jobs over all queues.
    pub concurrency: u64,
    /// Jobs running now.
    pub running: u64,
    /// How far the store's clock is ahead of the runner's, in milliseconds.
    pub skew_ms: Option<i64>,
    /// When it last announced itself.
    #[serde(with = "text")]
    pub announced_at: Timestamp,
    /// When it disappears from the list, unless it announces itself again.
    #[serde(with = "text")]
    pub valid_until: Timestamp,
    /// The queues it serves.
    pub queues: Vec<RunnerQueueSummary>,
    /// Further queues that did not fit into the announcement.
    pub omitted_queues: u64,
    /// The workers in other processes that claim through it; empty for other runners.
    #[serde(default)]
    pub workers: Vec<WorkerSummary>,
    /// Why the announcement cannot be read. Then only the name and the two announcement times are
    /// known.
    pub unreadable: Option<String>,
}

/// A worker that claims through `dq serve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct WorkerSummary {
    /// The worker's name.
    pub name: String,
    /// Jobs running now.
    pub running: u64,
}

/// A queue that a runner serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct RunnerQueueSummary {
    /// The queue.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// Maximum concurrent jobs from the queue.
    pub concurrency: u64,
    /// Which queues of the runner start first while its slots are scarce.
    #[serde(default)]
    #[schema(value_type = openapi::Priority)]
    pub priority: Priority,
    /// How many of the runner's slots only this queue uses.
    #[serde(default)]
    pub reserve: u64,
    /// Running jobs from the queue.
    pub running: u64,
    /// How late handlers started.
    pub lateness: Option<Quantiles>,
    /// How long handlers ran.
    pub run_time: Option<Quantiles>,
}

impl From<&RegisteredRunner> for RunnerSummary {
    fn from(runner: &RegisteredRunner) -> Self {
        let info = runner.info.as_ref();
        let text = |text: fn(&RunnerInfo) -> &String| info.map(text).cloned().unwrap_or_default();
        let number = |number: fn(&RunnerInfo) -> u64| info.map_or(0, number);
        Self {
            name: runner.name.clone(),
            host: text(|info| &info.host),
            pid: info.map_or(0, |info| info.pid),
            version: text(|info| &info.version),
            started: info.ok().map(|info| info.started),
            stopping: info.is_ok_and(|info| info.stopping),
            concurrency: number(|info| info.concurrency),
            running: number(|info| info.running),
            skew_ms: info.ok().and_then(|info| info.skew_ms),
            announced_at: runner.announced_at,
            valid_until: runner.valid_until,
            queues: info.iter().flat_map(|info| &info.queues).map(Into::into).collect(),
            omitted_queues: number(|info| info.omitted_queues),
            workers: info.iter().flat_map(|info| &info.workers).map(Into::into).collect(),
            unreadable: info.err().map(|unreadable| unreadable.error.clone()),
        }
    }
}

impl From<&WorkerInfo> for WorkerSummary {
    fn from(worker: &WorkerInfo) -> Self {
        Self { name: worker.name.clone(), running: worker.running }
    }
}

impl From<&RunnerQueue> for RunnerQueueSummary {
    fn from(queue: &RunnerQueue) -> Self {
        Self {
            queue: queue.queue.clone(),
            concurrency: queue.concurrency,
            priority: queue.priority,
            reserve: queue.reserve,
            running: queue.running,
            lateness: Quantiles::of(&queue.lateness),
            run_time: Quantiles::of(&queue.run_time),
        }
    }
}

impl Session {
    /// Lists the runners by name.
    pub async fn runners(&self) -> Result<Vec<RunnerSummary>> {
        Ok(self.ops.dq().runners().await?.iter().map(RunnerSummary::from).collect())
    }

    /// Names the worker behind a server that claims for others, as `WORKER@SERVER`.
    pub(crate) async fn name_worker(&self, job: &mut JobSummary) {
        if job.state != JobState::Running || self.name_own_worker(job) {
            return;
        }
        // Without the announcement, the server alone is named.
        let Ok(Some(runners)) = self.registered().await else { return };
        let Some(server) = &mut job.worker else { return };
        let info =
            runners.iter().find(|it| it.name == *server).and_then(|it| it.info.as_ref().ok());
        if let Some(worker) = info.and_then(|info| info.worker_of(job.id)) {
            *server = format!("{worker}@{server}");
        }
    }

    /// As [`name_worker`](Self::name_worker), if this process gave the worker its job.
    pub(crate) fn name_own_worker(&self, job: &mut JobSummary) -> bool {
        let Some(server) = self.ops.work.used_server() else { return false };
        let holder = job.worker.as_mut().filter(|holder| *holder == server.name());
        let Some((holder, worker)) = holder.zip(server.worker_of(&job.queue, job.id)) else {
            return false;
        };
        *holder = format!("{worker}@{holder}");
        true
    }

    /// Returns the runners and their announcements; `None` if the store keeps none.
    pub(crate) async fn registered(&self) -> Result<Option<Vec<RegisteredRunner>>> {
        if !self.ops.capabilities().registry {
            return Ok(None);
        }
        Ok(Some(self.ops.dq().runners().await?))
    }
}
