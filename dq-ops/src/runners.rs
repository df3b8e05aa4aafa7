//! The store's runners and how quickly they serve each queue.

use dq_core::{Histogram, QueueName, RegisteredRunner, RunnerQueue, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Result;
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
        let millis = |part| {
            let quantile = histogram.quantile(part)?;
            Some(u64::try_from(quantile.as_millis()).unwrap_or(u64::MAX))
        };
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
    /// Why the announcement cannot be read. Then only the name and the two announcement times are
    /// known.
    pub unreadable: Option<String>,
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
    /// Running jobs from the queue.
    pub running: u64,
    /// How late handlers started.
    pub lateness: Option<Quantiles>,
    /// How long handlers ran.
    pub run_time: Option<Quantiles>,
}

impl From<&RegisteredRunner> for RunnerSummary {
    fn from(runner: &RegisteredRunner) -> Self {
        let mut summary = Self {
            name: runner.name.clone(),
            host: String::new(),
            pid: 0,
            version: String::new(),
            started: None,
            stopping: false,
            concurrency: 0,
            running: 0,
            skew_ms: None,
            announced_at: runner.announced_at,
            valid_until: runner.valid_until,
            queues: Vec::new(),
            omitted_queues: 0,
            unreadable: None,
        };
        match &runner.info {
            Ok(info) => {
                summary.host.clone_from(&info.host);
                summary.pid = info.pid;
                summary.version.clone_from(&info.version);
                summary.started = Some(info.started);
                summary.stopping = info.stopping;
                summary.concurrency = info.concurrency;
                summary.running = info.running;
                summary.skew_ms = info.skew_ms;
                summary.queues = info.queues.iter().map(RunnerQueueSummary::from).collect();
                summary.omitted_queues = info.omitted_queues;
            }
            Err(unreadable) => summary.unreadable = Some(unreadable.error.clone()),
        }
        summary
    }
}

impl From<&RunnerQueue> for RunnerQueueSummary {
    fn from(queue: &RunnerQueue) -> Self {
        Self {
            queue: queue.queue.clone(),
            concurrency: queue.concurrency,
            running: queue.running,
            lateness: Quantiles::of(&queue.lateness),
            run_time: Quantiles::of(&queue.run_time),
        }
    }
}

impl Session {
    /// Lists the runners by name.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no announcements; `Unavailable`.
    pub async fn runners(&self) -> Result<Vec<RunnerSummary>> {
        Ok(self.ops.dq().runners().await?.iter().map(RunnerSummary::from).collect())
    }

    /// `None` if the store keeps no announcements.
    pub(crate) async fn registered(&self) -> Result<Option<Vec<RegisteredRunner>>> {
        if !self.ops.capabilities().registry {
            return Ok(None);
        }
        Ok(Some(self.ops.dq().runners().await?))
    }
}
