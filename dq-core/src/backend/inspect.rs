//! Arguments and results of `stats`, `browse`, `announce` and `runners`.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::model::{JobState, JobView, QueueName, Timestamp};

/// The number of jobs of a queue in each state; every stored job is in exactly one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct Totals {
    /// Stored by `schedule`, including replacements.
    pub created: u64,
    /// Settled as done.
    pub done: u64,
    /// Settled as skipped.
    pub skipped: u64,
    /// Cancelled while they waited, for the first run or for another one.
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
#[non_exhaustive]
pub struct BrowseParams<'a> {
    /// The queue.
    pub queue: &'a QueueName,
    /// The state of the jobs to list.
    pub state: JobState,
    /// The [`Page::next`] of the previous page; `None` for the first page.
    pub after: Option<Cursor>,
    /// Maximum number of jobs on the page; from 1 to 1,000.
    pub limit: usize,
    /// Whether the page has the payloads of the jobs. Otherwise the store does not send them, and reads
    /// them only if they are part of what it reads anyway, as in Redis.
    pub payloads: bool,
    /// The order of the jobs.
    pub order: Order,
}

impl<'a> BrowseParams<'a> {
    /// Creates the arguments for the first page of 100 jobs, in ascending order, without payloads.
    #[must_use]
    pub const fn new(queue: &'a QueueName, state: JobState) -> Self {
        Self { queue, state, after: None, limit: 100, payloads: false, order: Order::Ascending }
    }

    /// Sets [`Self::after`].
    #[must_use]
    pub const fn after(mut self, after: Option<Cursor>) -> Self {
        self.after = after;
        self
    }

    /// Sets [`Self::limit`].
    #[must_use]
    pub const fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets [`Self::payloads`].
    #[must_use]
    pub const fn payloads(mut self, payloads: bool) -> Self {
        self.payloads = payloads;
        self
    }

    /// Sets [`Self::order`].
    #[must_use]
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }
}

/// The order of a listing: the earliest or the latest time first.
///
/// The time is the due time of a waiting job, the end of the lease of a running one, the death of a
/// dead one, and the end of an ended one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The earliest time first.
    #[default]
    Ascending,
    /// The latest time first.
    Descending,
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
#[non_exhaustive]
pub struct Page {
    /// The jobs, in order.
    pub jobs: Vec<JobView>,
    /// Where the next page begins, as [`BrowseParams::after`] takes it; `None` if this is the last
    /// page.
    pub next: Option<Cursor>,
}

impl Page {
    /// Creates a page.
    #[must_use]
    pub const fn new(jobs: Vec<JobView>, next: Option<Cursor>) -> Self {
        Self { jobs, next }
    }
}

/// What a process tells the others about itself: an argument of
/// [`announce`](super::Backend::announce).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announcement {
    /// The name of the runner; a later announcement with the same name replaces this one.
    pub name: String,
    /// What the runner says of itself, as JSON; at most [`Self::MAX_BYTES`] bytes. Stores do not
    /// look into it.
    pub info: Bytes,
    /// How long the announcement is valid; zero withdraws it.
    pub ttl: Duration,
}

impl Announcement {
    /// Maximum length of [`Self::info`] in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Creates an announcement.
    #[must_use]
    pub fn new(name: impl Into<String>, info: impl Into<Bytes>, ttl: Duration) -> Self {
        Self { name: name.into(), info: info.into(), ttl }
    }
}

/// A runner that has announced itself: a result of [`runners`](super::Backend::runners).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announced {
    /// The name of the runner.
    pub name: String,
    /// What the runner says of itself, as JSON.
    pub info: Bytes,
    /// When it announced itself, by the store's clock.
    pub at: Timestamp,
    /// Until when the announcement is valid, by the store's clock.
    pub until: Timestamp,
}

impl Announced {
    /// Creates a result of `runners`.
    #[must_use]
    pub const fn new(name: String, info: Bytes, at: Timestamp, until: Timestamp) -> Self {
        Self { name, info, at, until }
    }
}
