//! Arguments and results of `stats` and `browse`.

use serde::Serialize;

use crate::model::{JobState, JobView, QueueName, Timestamp};

/// The number of jobs of a queue in each state; every stored job is in exactly one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Jobs whose due time has not come.
    pub scheduled: u64,
    /// Jobs that are due and wait for a runner with a free slot.
    pub ready: u64,
    /// Jobs that are leased to a runner.
    pub running: u64,
    /// Jobs that will not run again unless an operator replays them.
    pub dead: u64,
    /// Whether the queue is paused.
    pub paused: bool,
    /// The earliest due time among scheduled and ready jobs.
    pub next_due: Option<Timestamp>,
    /// Lifetime totals of the queue; `None` without [`Capabilities::totals`].
    ///
    /// [`Capabilities::totals`]: super::Capabilities::totals
    pub totals: Option<Totals>,
}

impl QueueStats {
    /// The counts of a queue without jobs and totals.
    #[must_use]
    pub const fn empty(queue: QueueName) -> Self {
        Self {
            queue,
            scheduled: 0,
            ready: 0,
            running: 0,
            dead: 0,
            paused: false,
            next_due: None,
            totals: None,
        }
    }

    /// Number of live jobs: scheduled, ready and running.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.scheduled + self.ready + self.running
    }

    /// Number of jobs in the store.
    #[must_use]
    pub const fn stored(&self) -> u64 {
        self.live() + self.dead
    }

    /// Whether as many jobs were created as are stored now or have departed, so that none was lost
    /// or doubled; `None` without totals.
    #[must_use]
    pub fn adds_up(&self) -> Option<bool> {
        self.totals.as_ref().map(|totals| totals.created == self.stored() + totals.departed())
    }
}

/// Lifetime totals of a queue, counted in jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// Stored by `schedule`, including replacements.
    pub created: u64,
    /// Settled as done.
    pub done: u64,
    /// Settled as skipped.
    pub skipped: u64,
    /// Cancelled before they started.
    pub cancelled: u64,
    /// Replaced by a new job with the same key.
    pub replaced: u64,
    /// Removed or purged by an operator.
    pub removed: u64,
}

impl Totals {
    /// Number of jobs that have left the store.
    #[must_use]
    pub const fn departed(&self) -> u64 {
        self.done + self.skipped + self.cancelled + self.replaced + self.removed
    }
}

/// The arguments of `browse`.
#[derive(Debug, Clone, Copy)]
pub struct BrowseParams<'a> {
    /// The queue.
    pub queue: &'a QueueName,
    /// The state of the jobs to list.
    pub state: JobState,
    /// The [`Page::next`] of the previous page; `None` for the first page.
    pub after: Option<Cursor>,
    /// Maximum number of jobs on the page; from 1 to 1,000.
    pub limit: usize,
}

/// A position in the listing of [`browse`](crate::QueueHandle::browse), which stays valid when jobs
/// are added and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The time of the last job of the page, by which the listing is ordered.
    pub at: Timestamp,
    /// The position of that job among jobs with the same time, in the backend's own numbering.
    pub seq: u128,
}

/// One page of the jobs that [`browse`](crate::QueueHandle::browse) lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The jobs, in order.
    pub jobs: Vec<JobView>,
    /// Where the next page begins, as [`BrowseParams::after`] takes it; `None` if this is the last
    /// page.
    pub next: Option<Cursor>,
}
