//! Questions and answers of stats and browse.

use serde::Serialize;

use crate::model::{JobState, JobView, QueueName, Timestamp};

/// Counts of one queue. Each stored job is in exactly one of the four states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Waiting for their due time.
    pub scheduled: u64,
    /// Due, and waiting for a free slot.
    pub ready: u64,
    /// Leased to a runner.
    pub running: u64,
    /// Kept for an operator.
    pub dead: u64,
    /// Whether the queue is paused.
    pub paused: bool,
    /// The earliest due time among scheduled and ready jobs.
    pub next_due: Option<Timestamp>,
    /// What happened over the queue's life; `None` without [`Capabilities::totals`].
    ///
    /// [`Capabilities::totals`]: super::Capabilities::totals
    pub totals: Option<Totals>,
}

impl QueueStats {
    /// A queue of which nothing is known.
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

    /// Jobs that have not ended: scheduled, ready or running.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.scheduled + self.ready + self.running
    }

    /// Jobs in the store.
    #[must_use]
    pub const fn stored(&self) -> u64 {
        self.live() + self.dead
    }

    /// Whether what came in equals what is here plus what left; `None` without totals.
    #[must_use]
    pub fn adds_up(&self) -> Option<bool> {
        self.totals.as_ref().map(|totals| totals.created == self.stored() + totals.left())
    }
}

/// What happened to the jobs of one queue since the store first saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// Stored by schedule; a replacement counts again.
    pub created: u64,
    /// Settled as done.
    pub done: u64,
    /// Settled as skipped.
    pub skipped: u64,
    /// Taken back by cancel.
    pub cancelled: u64,
    /// Gone because another took their key's place.
    pub replaced: u64,
    /// Removed or purged by an operator.
    pub removed: u64,
}

impl Totals {
    /// Jobs that have left the store.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.done + self.skipped + self.cancelled + self.replaced + self.removed
    }
}

/// Which jobs to list.
#[derive(Debug, Clone, Copy)]
pub struct BrowseParams<'a> {
    /// The queue.
    pub queue: &'a QueueName,
    /// The state.
    pub state: JobState,
    /// Where the last page ended; `None` for the first.
    pub after: Option<Cursor>,
    /// Jobs per page; at most 1,000.
    pub limit: usize,
}

/// A place between two jobs of a listing. Jobs that come and go between two pages do not shift
/// the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The time by which the listing is ordered.
    pub at: Timestamp,
    /// The backend's tie-break among equal times.
    pub seq: u128,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Where to go on; `None` when this was the last page.
    pub next: Option<Cursor>,
}
