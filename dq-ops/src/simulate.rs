//! Plays the next hours of the store on a virtual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::{Error, ErrorKind, QueueName, QueueSimulation, SimulationReport, Timestamp};
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::input::{parse_duration, parse_timestamp};
use crate::ops::Session;
use crate::text;

/// What a simulation plays. Durations are texts such as `300ms`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SimulationRequest {
    /// How far to play, such as `24h`, the default; up to 31 days.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::SimulationWindow>))]
    pub window: Option<String>,
    /// A time in the future at which the window begins; now by default.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub start: Option<String>,
    /// How often each job is played: 1, the default, to 1,000.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    #[serde(deserialize_with = "crate::json::whole")]
    pub load: Option<u32>,
    /// The number of jobs of a queue that run at once; that of the runners by default.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<crate::openapi::QueueName, crate::openapi::Slots>))]
    #[serde(deserialize_with = "crate::json::whole_numbers")]
    pub concurrency: BTreeMap<String, u64>,
    /// The same for queues that no runner serves.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(deserialize_with = "crate::json::whole")]
    pub default_concurrency: Option<u64>,
    /// How long each job of a queue runs; as in the last five minutes by default.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<crate::openapi::QueueName, crate::openapi::PositiveDuration>))]
    pub run_time: BTreeMap<String, String>,
    /// The same for queues without a job in the last five minutes.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::openapi::PositiveDuration>))]
    pub default_run_time: Option<String>,
}

/// What a simulation has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct SimulationView {
    /// The beginning of the window.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub start: Timestamp,
    /// The end of the window. Jobs that are due from then on are not played.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub end: Timestamp,
    /// Number of jobs that are due before a start in the future, and are taken as done by then.
    pub due_earlier: u64,
    /// The queues with jobs in the window, ordered by name.
    pub queues: Vec<SimulatedQueue>,
}

/// A queue in a [`SimulationView`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct SimulatedQueue {
    /// The queue.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::QueueName))]
    pub queue: QueueName,
    /// How many jobs run at once; 0 if the queue is paused.
    pub concurrency: u64,
    /// Number of jobs that were played.
    pub jobs: u64,
    /// Number of occurrences of schedules that were skipped, because the job of an earlier one was
    /// live.
    pub skipped: u64,
    /// How long after their due times half of the jobs started at most, in milliseconds.
    pub late_p50_ms: Option<u64>,
    /// How long after their due times 99 of 100 jobs started at most, in milliseconds.
    pub late_p99_ms: Option<u64>,
    /// How long after its due time the latest job started, in milliseconds.
    pub late_max_ms: Option<u64>,
    /// The largest number of jobs that were due and waited at the same time.
    pub backlog: u64,
    /// When the backlog was this large for the first time; `None` if no job waited.
    #[serde(with = "text::option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub backlog_at: Option<Timestamp>,
    /// When no job waited for the first time after that; `None` if no job waited, or the queue is
    /// paused.
    #[serde(with = "text::option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub drained: Option<Timestamp>,
    /// Number of jobs that were due and waited at the end of the window.
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
        let millis = |duration: Option<Duration>| {
            duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
        };
        Self {
            queue: queue.queue,
            concurrency: queue.concurrency,
            jobs: queue.jobs,
            skipped: queue.skipped,
            late_p50_ms: millis(queue.lateness_p50),
            late_p99_ms: millis(queue.lateness_p99),
            late_max_ms: millis(queue.lateness_max),
            backlog: queue.backlog,
            backlog_at: queue.backlog_at,
            drained: queue.drained,
            backlog_at_end: queue.backlog_at_end,
        }
    }
}

/// The permission to run a simulation; there is one for all sessions of an [`Ops`](crate::Ops).
struct Permit(Arc<AtomicBool>);

impl Permit {
    fn take(is_taken: &Arc<AtomicBool>) -> Option<Self> {
        (!is_taken.swap(true, Ordering::AcqRel)).then(|| Self(Arc::clone(is_taken)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Session {
    /// Plays the pending jobs and the schedules of all queues on a virtual clock; see
    /// [`Dq::simulate`](dq_core::Dq::simulate). Nothing changes in the store. Needs the role operator,
    /// since it reads all pending jobs, up to a million, and takes memory for them.
    ///
    /// # Errors
    /// `InvalidInput` if an option is out of range; `Conflict` if the start has passed, the concurrency or
    /// the run time of a queue is not known, there are too many jobs, or another simulation of this
    /// [`Ops`](crate::Ops) runs; `Forbidden`, and errors of the store.
    pub async fn simulate(&self, request: &SimulationRequest) -> Result<SimulationView> {
        self.require(Role::Operator)?;
        let permit = Permit::take(self.ops.simulation()).ok_or_else(|| {
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
        // It goes on computing if the request is cancelled, and keeps the permit for as long.
        let played = tokio::spawn(async move {
            let _permit = permit;
            simulation.await
        });
        let report =
            played.await.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))?;
        report.map(SimulationView::from).map_err(OpsError::unfit)
    }
}
