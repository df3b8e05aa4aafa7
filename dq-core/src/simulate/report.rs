//! What a simulation has found.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::model::{QueueName, Timestamp};

/// The result of [`Dq::simulate`](crate::Dq::simulate). `Display` writes the window, and a
/// line for each queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SimulationReport {
    /// The beginning of the window.
    pub start: Timestamp,
    /// The end of the window. Jobs that are due from then on are not played.
    pub end: Timestamp,
    /// Number of pending jobs that are due before a [start](crate::Simulation::start) in the future.
    /// They are taken as done by then, and not played.
    pub due_earlier: u64,
    /// The queues with jobs in the window, ordered by name.
    pub queues: Vec<QueueSimulation>,
}

/// A queue in a [`SimulationReport`]. `Display` writes it as one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueSimulation {
    /// The queue.
    pub queue: QueueName,
    /// How many jobs run at once; 0 if the queue is paused.
    pub concurrency: u64,
    /// Number of jobs that were played: pending ones and occurrences, times the load.
    pub jobs: u64,
    /// Number of occurrences of schedules that were skipped, because the job of an earlier one was
    /// live.
    pub skipped: u64,
    /// How long after their due times half of the jobs started at most; `None` if none started.
    pub lateness_p50: Option<Duration>,
    /// How long after their due times 99 of 100 jobs started at most; `None` if none started.
    pub lateness_p99: Option<Duration>,
    /// The longest time after its due time at which a job started; `None` if none started.
    pub lateness_max: Option<Duration>,
    /// The largest number of jobs that were due and waited for a slot at the same time.
    pub backlog: u64,
    /// When the backlog was this large for the first time; `None` if no job waited.
    pub backlog_at: Option<Timestamp>,
    /// When no job waited for the first time after that, which may be after the window; `None` if no
    /// job waited, or the queue is paused.
    pub drained: Option<Timestamp>,
    /// Number of jobs that were due and waited at the end of the window.
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
        if self.skipped > 0 {
            write!(f, ", {} occurrences skipped", self.skipped)?;
        }
        let lateness = (self.lateness_p50, self.lateness_p99, self.lateness_max);
        if let (Some(p50), Some(p99), Some(max)) = lateness {
            let [p50, p99, max] = [p50, p99, max].map(|late| {
                humantime::format_duration(Duration::from_millis(
                    u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
                ))
            });
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
