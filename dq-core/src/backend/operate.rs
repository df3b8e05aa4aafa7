//! Administrative operations.

use crate::model::{Due, JobId, QueueName};

/// An administrative operation on a queue. Job ids that are listed twice count once.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Schedules dead jobs again, with `attempts` and `losses` set to zero and without their
    /// last error. A job stays dead and is
    /// not counted if a live job has its key.
    ///
    /// Requires [`Capabilities::dead_letters`](super::Capabilities::dead_letters).
    Replay {
        /// The queue.
        queue: &'a QueueName,
        /// The ids of the dead jobs; at most 1,000.
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
        /// The ids of the dead jobs; at most 1,000.
        jobs: &'a [JobId],
    },
    /// Stops claims from the queue in all processes until it is resumed. Running jobs finish.
    ///
    /// Requires [`Capabilities::pause`](super::Capabilities::pause).
    Pause {
        /// The queue.
        queue: &'a QueueName,
    },
    /// Allows claims again after a pause, and wakes listeners.
    ///
    /// Requires [`Capabilities::pause`](super::Capabilities::pause).
    Resume {
        /// The queue.
        queue: &'a QueueName,
    },
    /// Removes scheduled, ready and dead jobs of the queue. Running jobs finish.
    ///
    /// One call removes a limited number of jobs, so that it holds up other calls for some
    /// milliseconds at most; repeat it while [`OperateReport::more`] is set. Then every job is removed
    /// that waited or was dead when the first call began, unless it was claimed in between. One that is
    /// scheduled between two calls may be removed, too.
    Purge {
        /// The queue.
        queue: &'a QueueName,
    },
}

impl Operation<'_> {
    /// The queue that the operation changes.
    #[must_use]
    pub const fn queue(&self) -> &QueueName {
        match self {
            Self::Replay { queue, .. }
            | Self::Remove { queue, .. }
            | Self::Pause { queue }
            | Self::Resume { queue }
            | Self::Purge { queue } => queue,
        }
    }
}

/// The result of an administrative operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperateReport {
    /// Number of jobs that changed; for pause and resume 1, or 0 if the queue is already in that
    /// state.
    pub affected: u64,
    /// Whether a purge has to be repeated. If it is `false`, no job is left to remove. A store may
    /// end a call after a number of jobs and set it without looking whether it has left any, so the
    /// last call may remove none.
    pub more: bool,
}

impl OperateReport {
    /// Creates the report of an operation that is complete.
    #[must_use]
    pub const fn new(affected: u64) -> Self {
        Self { affected, more: false }
    }
}
