//! Simulation results.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::backend::QueueFlow;
use crate::model::{QueueName, Timestamp, format_duration};

/// The result of [`Dq::simulate`](crate::Dq::simulate).
///
/// `Display` writes the window and one line per queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SimulationReport {
    /// Start of the window.
    pub start: Timestamp,
    /// End of the window. Jobs due from then on are not played.
    pub end: Timestamp,
    /// Pending jobs due before a future [start](crate::Simulation::start). They count as done and
    /// are not played.
    pub due_earlier: u64,
    /// Queues with jobs in the window, by name.
    pub queues: Vec<QueueSimulation>,
}

/// One queue in a [`SimulationReport`]. `Display` writes one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueSimulation {
    /// The queue.
    pub queue: QueueName,
    /// Slots for the queue's jobs; 0 if the queue is paused. [`flow`](Self::flow) may allow fewer.
    pub concurrency: u64,
    /// The limits that were played.
    pub flow: QueueFlow,
    /// Jobs played: pending jobs and occurrences, times the load.
    pub jobs: u64,
    /// Occurrences skipped because an earlier one's job was live.
    pub skipped: u64,
    /// Half of the jobs started at most this late; `None` if none started.
    pub lateness_p50: Option<Duration>,
    /// 99 of 100 jobs started at most this late; `None` if none started.
    pub lateness_p99: Option<Duration>,
    /// The latest start after its due time; `None` if none started.
    pub lateness_max: Option<Duration>,
    /// The highest number of due jobs waiting for a slot at once.
    pub backlog: u64,
    /// When the backlog first reached this size; `None` if no job waited.
    pub backlog_at: Option<Timestamp>,
    /// When the backlog was first empty after that, perhaps after the window; `None` if no job
    /// waited or the queue is paused.
    pub drained: Option<Timestamp>,
    /// Due jobs still waiting at the end of the window.
    pub backlog_at_end: u64,
}

impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.start, self.end)?;
        self.queues.iter().try_for_each(|queue| write!(f, "\n{queue}"))
    }
}

impl fmt::Display for QueueSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} jobs", self.queue, self.jobs)?;
        if self.flow.in_force().is_limited() {
            write!(f, " with {}", self.flow.in_force())?;
        }
        if self.skipped > 0 {
            write!(f, ", {} occurrences skipped", self.skipped)?;
        }
        let lateness = (self.lateness_p50, self.lateness_p99, self.lateness_max);
        if let (Some(p50), Some(p99), Some(max)) = lateness {
            let [p50, p99, max] = [p50, p99, max].map(format_duration);
            write!(f, ", late p50 {p50}, p99 {p99}, max {max}")?;
        }
        if let Some(at) = self.backlog_at {
            write!(f, ", {} wait at {at}", self.backlog)?;
        }
        match self.drained {
            Some(drained) => write!(f, ", drained at {drained}"),
            None if self.concurrency == 0 => f.write_str(", paused"),
            None => Ok(()),
        }
    }
}
