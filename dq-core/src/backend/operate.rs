//! An operator's interventions.

use crate::model::{Due, JobId, QueueName};

/// What an operator wants done. A job whose id is named twice counts once.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Makes dead jobs scheduled again, attempts and losses zero, due at the given time; all of
    /// the queue if `jobs` is `None`. A job whose key is live again stays dead and is not counted.
    ///
    /// Requires [`Capabilities::dead_letters`](super::Capabilities::dead_letters).
    Replay {
        /// The queue.
        queue: &'a QueueName,
        /// Which dead jobs.
        jobs: Option<&'a [JobId]>,
        /// When they shall be due.
        due: Due,
    },
    /// Removes dead jobs for good; all of the queue if `jobs` is `None`.
    ///
    /// Requires [`Capabilities::dead_letters`](super::Capabilities::dead_letters).
    Remove {
        /// The queue.
        queue: &'a QueueName,
        /// Which dead jobs.
        jobs: Option<&'a [JobId]>,
    },
    /// Stops claims of this queue in every process, until resumed; running jobs finish.
    ///
    /// Requires [`Capabilities::pause`](super::Capabilities::pause).
    Pause {
        /// The queue.
        queue: &'a QueueName,
    },
    /// Undoes a pause and wakes the listeners.
    ///
    /// Requires [`Capabilities::pause`](super::Capabilities::pause).
    Resume {
        /// The queue.
        queue: &'a QueueName,
    },
    /// Removes every scheduled, ready and dead job of this one queue; running jobs finish.
    Purge {
        /// The queue.
        queue: &'a QueueName,
    },
}

impl Operation<'_> {
    /// The queue that is operated on.
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

/// What an operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OperateReport {
    /// Jobs (or, for pause and resume, queues) that changed.
    pub affected: u64,
}
