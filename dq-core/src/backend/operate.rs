//! Administrative operations.

use crate::model::{Due, Flow, JobId, QueueName};

/// An administrative operation on a queue. Duplicate job ids count once.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Schedules dead jobs again, with zero `attempts` and `losses` and no last error.
    ///
    /// Skips and does not count a job if a live job has its key.
    ///
    /// Requires [`Capabilities::dead_letters`](super::Capabilities::dead_letters).
    Replay {
        /// The queue.
        queue: &'a QueueName,
        /// The ids of dead jobs; at most 1,000.
        jobs: &'a [JobId],
        /// The new due time.
        due: Due,
    },
    /// Removes dead jobs.
    ///
    /// Requires [`Capabilities::dead_letters`](super::Capabilities::dead_letters).
    Remove {
        /// The queue.
        queue: &'a QueueName,
        /// The ids of dead jobs; at most 1,000.
        jobs: &'a [JobId],
    },
    /// Stops claims from the queue in all processes until you resume it. Running jobs finish.
    ///
    /// Requires [`Capabilities::pause`](super::Capabilities::pause).
    Pause {
        /// The queue.
        queue: &'a QueueName,
    },
    /// Allows claims again after a pause or a [`Verdict::Throttle`](super::Verdict::Throttle), and
    /// wakes listeners.
    ///
    /// Requires [`Capabilities::pause`](super::Capabilities::pause).
    Resume {
        /// The queue.
        queue: &'a QueueName,
    },
    /// Sets the queue's limits, unless an operator has overridden them, and wakes listeners. The
    /// latest declaration counts.
    ///
    /// Requires [`Capabilities::flow`](super::Capabilities::flow).
    DeclareFlow {
        /// The queue.
        queue: &'a QueueName,
        /// The limits.
        flow: Flow,
    },
    /// Sets limits that count in place of the declared ones, and wakes listeners.
    ///
    /// Requires [`Capabilities::flow`](super::Capabilities::flow).
    OverrideFlow {
        /// The queue.
        queue: &'a QueueName,
        /// The limits; `None` for the declared ones.
        flow: Option<Flow>,
    },
    /// Removes the queue's scheduled, ready and dead jobs. Running jobs finish.
    ///
    /// Each call removes a limited number, to block other calls for some milliseconds at most.
    /// Repeat it while [`OperateReport::more`] is set. Afterwards, every job that waited or was
    /// dead at the first call is gone, unless it was claimed in between. Jobs scheduled between two
    /// calls may be removed too.
    Purge {
        /// The queue.
        queue: &'a QueueName,
    },
}

impl Operation<'_> {
    /// Returns the queue that the operation changes.
    pub const fn queue(&self) -> &QueueName {
        match self {
            Self::Replay { queue, .. }
            | Self::Remove { queue, .. }
            | Self::Pause { queue }
            | Self::Resume { queue }
            | Self::DeclareFlow { queue, .. }
            | Self::OverrideFlow { queue, .. }
            | Self::Purge { queue } => queue,
        }
    }
}

/// Result of an administrative operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperateReport {
    /// Number of changed jobs. For pause, resume and limits: 1, or 0 if the queue is already in
    /// that state.
    pub affected: u64,
    /// Whether to repeat the purge; `false` if no job is left. The last call may remove none.
    pub more: bool,
}

impl OperateReport {
    /// Creates the report of a complete operation.
    pub const fn new(affected: u64) -> Self {
        Self { affected, more: false }
    }
}
