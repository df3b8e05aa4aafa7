//! Simulates the next hours of the store on a virtual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{Error, ErrorKind, QueueName, QueueSimulation, SimulationReport, Timestamp};
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::input::{parse_duration, parse_timestamp};
use crate::json::millis;
use crate::limits::LimitsView;
use crate::openapi;
use crate::ops::Session;
use crate::text;

/// Simulation options. Durations are texts such as `300ms`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SimulationRequest {
    /// How far to simulate, up to 31 days; `24h` by default.
    #[schema(value_type = Option<openapi::SimulationWindow>)]
    pub window: Option<String>,
    /// A future start; now by default.
    #[schema(value_type = Option<String>, format = "date-time")]
    pub start: Option<String>,
    /// How many copies of each job to simulate: 1 (the default) to 1,000.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(deserialize_with = "crate::json::whole")]
    pub load: Option<u32>,
    /// Concurrent jobs per queue; the runners' slots by default.
    #[schema(value_type = BTreeMap<openapi::QueueName, openapi::Slots>)]
    #[serde(deserialize_with = "crate::json::whole_numbers")]
    pub concurrency: BTreeMap<String, u64>,
    /// Concurrent jobs for queues without a runner.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "crate::json::whole")]
    pub default_concurrency: Option<u64>,
    /// Run time per job, by queue; measured over the last five minutes by default.
    #[schema(value_type = BTreeMap<openapi::QueueName, openapi::PositiveDuration>)]
    pub run_time: BTreeMap<String, String>,
    /// Run time for queues without a job in the last five minutes.
    #[schema(value_type = Option<openapi::PositiveDuration>)]
    pub default_run_time: Option<String>,
}

/// A simulation's result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct SimulationView {
    /// Start of the window.
    #[serde(with = "text")]
    pub start: Timestamp,
    /// End of the window. Jobs due from then on are left out.
    #[serde(with = "text")]
    pub end: Timestamp,
    /// Jobs due before a future start, assumed done by then.
    pub due_earlier: u64,
    /// The queues with jobs in the window, ordered by name.
    pub queues: Vec<SimulatedQueue>,
}

/// A queue in a [`SimulationView`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct SimulatedQueue {
    /// The queue.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// Slots for the queue's jobs; 0 if the queue is paused. The limits may allow fewer.
    pub concurrency: u64,
    /// Limits for all processes, which were played; `None` if there are none.
    pub limits: Option<LimitsView>,
    /// Simulated jobs.
    pub jobs: u64,
    /// Occurrences skipped because an earlier occurrence's job was live.
    pub skipped: u64,
    /// Median lateness, in milliseconds.
    pub late_p50_ms: Option<u64>,
    /// 99th percentile lateness, in milliseconds.
    pub late_p99_ms: Option<u64>,
    /// Greatest lateness, in milliseconds.
    pub late_max_ms: Option<u64>,
    /// Most jobs that were due and waiting at one time.
    pub backlog: u64,
    /// When the backlog first was this large; `None` if no job waited.
    #[serde(with = "text::option")]
    pub backlog_at: Option<Timestamp>,
    /// When it was first empty after that; `None` if no job waited or the queue is paused.
    #[serde(with = "text::option")]
    pub drained: Option<Timestamp>,
    /// Jobs due and waiting when the window ends.
    pub backlog_at_end: u64,
}

impl From<SimulationReport> for SimulationView {
    fn from(report: SimulationReport) -> Self {
        let queues = report.queues.into_iter().map(SimulatedQueue::from).collect();
        Self { start: report.start, end: report.end, due_earlier: report.due_earlier, queues }
    }
}

impl From<QueueSimulation> for SimulatedQueue {
    fn from(queue: QueueSimulation) -> Self {
        Self {
            queue: queue.queue,
            concurrency: queue.concurrency,
            limits: LimitsView::of(&queue.flow),
            jobs: queue.jobs,
            skipped: queue.skipped,
            late_p50_ms: queue.lateness_p50.map(millis),
            late_p99_ms: queue.lateness_p99.map(millis),
            late_max_ms: queue.lateness_max.map(millis),
            backlog: queue.backlog,
            backlog_at: queue.backlog_at,
            drained: queue.drained,
            backlog_at_end: queue.backlog_at_end,
        }
    }
}

impl Session {
    /// Simulates all queues' pending jobs and schedules on a virtual clock.
    ///
    /// See [`Dq::simulate`](dq_core::Dq::simulate). The store does not change. Needs the role
    /// operator, because it reads up to a million jobs into memory.
    ///
    /// # Errors
    /// `InvalidInput` if an option is out of range; `Conflict` if the start has passed, a queue's
    /// concurrency or run time is unknown, there are too many jobs, or another simulation runs;
    /// `Forbidden`, and store errors.
    pub async fn simulate(&self, request: &SimulationRequest) -> Result<SimulationView> {
        self.require(Role::Operator)?;
        // One simulation runs at a time, over all sessions.
        let turn = Arc::clone(&self.ops.simulation).try_lock_owned().map_err(|_| {
            OpsError::conflict("another simulation runs", "try again when it has ended")
        })?;
        let window = request.window.as_deref().map(parse_duration).transpose()?;
        let window = window.unwrap_or(Duration::from_secs(86_400));
        let mut simulation = self.ops.dq().simulate(window);
        if let Some(start) = &request.start {
            simulation = simulation.start(parse_timestamp(start)?);
        }
        if let Some(load) = request.load {
            simulation = simulation.load(load);
        }
        for (queue, concurrency) in &request.concurrency {
            simulation = simulation.concurrency(queue, *concurrency);
        }
        if let Some(concurrency) = request.default_concurrency {
            simulation = simulation.default_concurrency(concurrency);
        }
        for (queue, run_time) in &request.run_time {
            simulation = simulation.run_time(queue, parse_duration(run_time)?);
        }
        if let Some(run_time) = &request.default_run_time {
            simulation = simulation.default_run_time(parse_duration(run_time)?);
        }
        simulation.validate()?;
        // The computation goes on when the caller goes away, so its task keeps the turn.
        let played = tokio::spawn(async move {
            let _turn = turn;
            simulation.await
        });
        let report = played.await.map_err(|error| {
            Error::new(ErrorKind::Closed, format!("the simulation was interrupted: {error}"))
                .remedy("try again")
        })?;
        report.map(SimulationView::from).map_err(OpsError::unfit)
    }
}
