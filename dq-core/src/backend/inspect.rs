//! Arguments and results of `stats`, `browse`, `announce` and `runners`.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::model::{Flow, JobState, JobView, LatenessCause, QueueName, RateState, Timestamp};

/// A queue's job count by state; every stored job is in exactly one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Jobs that are not due yet.
    pub scheduled: u64,
    /// Due jobs that wait for a free slot.
    pub ready: u64,
    /// Jobs leased to a runner.
    pub running: u64,
    /// Jobs that only run again if an operator replays them.
    pub dead: u64,
    /// Whether the queue is paused.
    pub paused: bool,
    /// The earliest due time among scheduled and ready jobs.
    pub next_due: Option<Timestamp>,
    /// The queue's lifetime totals; `None` without [`Capabilities::totals`].
    ///
    /// [`Capabilities::totals`]: super::Capabilities::totals
    pub totals: Option<Totals>,
    /// The limits of the queue's flow; none without
    /// [`Capabilities::flow`](super::Capabilities::flow).
    pub flow: QueueFlow,
}

impl QueueStats {
    /// Creates counts of zero, without totals.
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
            flow: QueueFlow::new(Flow::UNLIMITED, None),
        }
    }

    /// Returns which limit lets no job start now: `MaxRunning`, `Rate` or `Throttled`.
    pub fn limit(&self) -> Option<LatenessCause> {
        let max = self.flow.in_force().max_running;
        if self.flow.throttled_until.is_some() {
            Some(LatenessCause::Throttled)
        } else if max.is_some_and(|max| self.running >= u64::from(max)) {
            Some(LatenessCause::MaxRunning)
        } else {
            self.flow.opens_at.map(|_| LatenessCause::Rate)
        }
    }

    /// Returns whether the queue limits groups and has ready jobs, which may wait for theirs.
    pub fn may_wait_for_groups(&self) -> bool {
        self.ready > 0 && self.flow.in_force().group_max_running.is_some()
    }

    /// Returns the number of live jobs: scheduled, ready and running.
    pub const fn live(&self) -> u64 {
        self.scheduled + self.ready + self.running
    }

    /// Returns the number of stored jobs.
    pub const fn stored(&self) -> u64 {
        self.live() + self.dead
    }

    /// Returns whether created jobs equal stored plus departed jobs; `None` without totals.
    ///
    /// If not, a job was lost or doubled.
    pub fn adds_up(&self) -> Option<bool> {
        self.totals.as_ref().map(|totals| totals.created == self.stored() + totals.departed())
    }
}

/// The limits of a queue's flow, and whether one holds jobs back now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct QueueFlow {
    /// The runners' latest declaration.
    pub declared: Flow,
    /// An operator's limits in its place.
    pub overriding: Option<Flow>,
    /// When the next job may start, if the rate or a handler's
    /// [`throttle`](crate::Outcome::throttle) lets none start now.
    pub opens_at: Option<Timestamp>,
    /// Until when a handler's [`throttle`](crate::Outcome::throttle) lets no job start.
    pub throttled_until: Option<Timestamp>,
    /// What the rate in force has used; 0 without a rate.
    pub used: RateState,
}

impl QueueFlow {
    /// Creates the state of a queue in which jobs may start now.
    pub const fn new(declared: Flow, overriding: Option<Flow>) -> Self {
        Self { declared, overriding, opens_at: None, throttled_until: None, used: RateState(0) }
    }

    /// Returns the limits in force.
    pub fn in_force(&self) -> Flow {
        self.overriding.unwrap_or(self.declared)
    }
}

/// A queue's lifetime totals, counted in jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Stored by `schedule`, including replacements.
    pub created: u64,
    /// Settled as done.
    pub done: u64,
    /// Settled as skipped.
    pub skipped: u64,
    /// Cancelled while waiting, for the first or a later run.
    pub cancelled: u64,
    /// Replaced by a new job with the same key.
    pub replaced: u64,
    /// Removed or purged by an operator.
    pub removed: u64,
}

impl Totals {
    /// Returns the number of jobs that have left the store.
    pub const fn departed(&self) -> u64 {
        self.done + self.skipped + self.cancelled + self.replaced + self.removed
    }
}

/// Arguments of `browse`.
#[derive(Debug, Clone, Copy)]
#[must_use]
#[non_exhaustive]
pub struct BrowseParams<'a> {
    /// The queue.
    pub queue: &'a QueueName,
    /// The job state to list.
    pub state: JobState,
    /// The [`Page::next`] of the previous page; `None` for the first page.
    pub after: Option<Cursor>,
    /// Maximum number of jobs on the page: 1 to 1,000.
    pub limit: usize,
    /// Whether the page includes payloads. If not, the store reads them only where it must, as in
    /// Redis.
    pub payloads: bool,
    /// The order.
    pub order: Order,
}

impl<'a> BrowseParams<'a> {
    /// Creates the arguments for the first page: 100 jobs, ascending, without payloads.
    pub const fn new(queue: &'a QueueName, state: JobState) -> Self {
        Self { queue, state, after: None, limit: 100, payloads: false, order: Order::Ascending }
    }

    setters!(after: Option<Cursor>, limit: usize, payloads: bool, order: Order);

    /// Narrows the positions that a page lists, between `first` and `last` (both excluded), to
    /// those beyond its cursor. A position is a time in Unix milliseconds and a sequence number.
    pub(crate) fn positions_between(
        &self,
        first: (i64, u64),
        last: (i64, u64),
    ) -> ((i64, u64), (i64, u64)) {
        let Some(Cursor { at, seq }) = self.after else { return (first, last) };
        // A sequence number of another store may be larger than any here.
        let cursor = (at.as_millis(), u64::try_from(seq).unwrap_or(u64::MAX));
        match self.order {
            Order::Ascending => (first.max(cursor), last),
            Order::Descending => (first, last.min(cursor)),
        }
    }
}

/// The order of a listing: earliest or latest time first.
///
/// The time is a waiting job's due time, a running job's lease expiry, a dead job's death, or an
/// ended job's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The earliest time first.
    #[default]
    Ascending,
    /// The latest time first.
    Descending,
}

/// A position in a [`browse`](crate::QueueHandle::browse) listing; it stays valid when jobs come
/// and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The time of the page's last job, by which the listing is ordered.
    pub at: Timestamp,
    /// That job's position among equal times, in the backend's numbering.
    pub seq: u128,
}

/// One page of a [`browse`](crate::QueueHandle::browse) listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The jobs, in order.
    pub jobs: Vec<JobView>,
    /// The start of the next page, for [`BrowseParams::after`]; `None` on the last page.
    pub next: Option<Cursor>,
}

impl Page {
    /// Creates a page.
    pub const fn new(jobs: Vec<JobView>, next: Option<Cursor>) -> Self {
        Self { jobs, next }
    }
}

/// An argument of [`announce`](super::Backend::announce).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announcement {
    /// The runner's name. A later announcement replaces this one.
    pub name: String,
    /// The runner's details as JSON, at most [`Self::MAX_BYTES`] bytes; opaque to stores.
    pub info: Bytes,
    /// How long the announcement is valid; zero withdraws it.
    pub ttl: Duration,
}

impl Announcement {
    /// Maximum length of [`Self::info`] in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Creates an announcement.
    pub fn new(name: impl Into<String>, info: impl Into<Bytes>, ttl: Duration) -> Self {
        Self { name: name.into(), info: info.into(), ttl }
    }
}

/// An announced runner: a result of [`runners`](super::Backend::runners).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announced {
    /// The runner's name.
    pub name: String,
    /// The runner's details as JSON.
    pub info: Bytes,
    /// When the runner announced itself, by the store's clock.
    pub at: Timestamp,
    /// When the announcement becomes invalid, by the store's clock.
    pub until: Timestamp,
}

impl Announced {
    /// Creates an announced runner.
    pub const fn new(name: String, info: Bytes, at: Timestamp, until: Timestamp) -> Self {
        Self { name, info, at, until }
    }
}
