//! The `Backend` trait: the contract of every store.

use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::capability::Capabilities;
use super::check::Finding;
use super::claim::{ClaimParams, Claimed, Lease, Renewal, Renewed};
use super::inspect::{Announced, Announcement, BrowseParams, Page, QueueStats};
use super::operate::{OperateReport, Operation};
use super::schedule::{Cancelled, Reschedule, Rescheduled, Scheduled};
use super::settle::{Settled, Settlement};
use super::statement::SqlStatement;
use super::wakeup::Wakeups;
use crate::error::{Error, Result};
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};

/// A store of delayed jobs.
///
/// Validation, retries, typed payloads and the runner build on this trait. The behaviour suite
/// and the model in `dq-testkit` together test the *Behaviour* lists.
///
/// # States
/// A stored job *waits* (scheduled or, once due, ready), is *leased* (running), or is *dead*. A
/// waiting or leased job is *live*. A job that leaves the store has *ended*: done, skipped,
/// cancelled, replaced or removed.
///
/// # Ended jobs
/// With [`Capabilities::history`], a store remembers each queue's latest ended jobs, without
/// payload and headers, within the [`HistoryLimit`](crate::HistoryLimit) from
/// [`Environment`](crate::config::Environment). [`get`](Self::get) and [`browse`](Self::browse)
/// return them as `Ended`; [`schedule`](Self::schedule) does not store them again, and may treat a
/// few beyond the limit alike. No other method sees them.
///
/// [`NewJob::remember`] *pins* an id for that time after the job's end, whatever the limits.
///
/// # Batches
/// Batch methods return one result per item, in order. An `Err` concerns the whole call.
///
/// # Expired leases
/// Every method treats a job with an expired lease as due again, at its old due time, without a
/// background process. `deliveries` counts that lease, and `losses` is one higher.
///
/// A store without a clock may measure a lease in each process, from when that process first sees
/// it.
///
/// # Cancellation safety
/// Dropping a method's future leaves the store consistent; the call may or may not have taken
/// effect. The leases of a dropped [`claim`](Self::claim) are returned at once if possible, or else
/// expire.
///
/// # Errors
/// Any fallible method may return these kinds of [`Error`](crate::Error):
/// - `Unavailable`: the store cannot be reached;
/// - `OutcomeUnknown`: the connection was lost during the call, which may have taken effect;
/// - `Full`, `ReadOnly`: the store cannot accept writes;
/// - `Incompatible`: the store has another program's data or an unknown version;
/// - `Unsupported`: the backend lacks a required capability; it never returns `Ok` instead;
/// - `Config`: the store's permissions or settings prevent the call;
/// - `InvalidInput`: an item is too large for the store;
/// - `Codec`: a payload does not fit the store's encoding;
/// - `Internal`: a bug;
/// - `Closed`: [`close`](Self::close) has been called.
#[async_trait]
pub trait Backend: Any + Debug + Send + Sync {
    /// Returns the name in configuration and errors, such as `"sqlite"`.
    fn name(&self) -> &'static str;

    /// Returns the optional features.
    fn capabilities(&self) -> Capabilities;

    /// Returns the wrapped backend; `None` by default.
    ///
    /// [`Layer`](super::Layer) returns the inner one for [`Dq::backend_as`](crate::Dq::backend_as).
    fn wrapped(&self) -> Option<&dyn Backend> {
        None
    }

    /// Returns the store's time, or this process's if the store has no clock.
    async fn now(&self) -> Result<Timestamp>;

    /// Stores jobs. After `Ok` they are as durable as the store's configuration makes them.
    ///
    /// Behaviour:
    /// - an id that is already in its queue, live or dead: nothing changes, and the result is
    ///   `Created` with the stored job's receipt. Ids are globally unique, so a backend may also
    ///   refuse an id from another queue, with `Kept`;
    /// - an ended job whose id is pinned or in the queue's history (where [`get`](Self::get) finds
    ///   it): it is not stored again, and the result is `Ended` with its receipt. No other job
    ///   changes, whatever the key and policies;
    /// - a live job in the queue with the same key: [`OnConflict`](crate::OnConflict) decides which
    ///   job stays. A leased job always stays: the result is `AlreadyRunning`, and the new job is
    ///   not stored. With [`OnRunning::Detach`](crate::OnRunning::Detach), the new job takes the
    ///   key and is stored;
    /// - a dead job does not occupy its key;
    /// - a large batch may be stored in several atomic chunks. After an `Err`, repeat the call with
    ///   the same ids;
    /// - listeners wake if the new job becomes the earliest in its queue.
    ///
    /// Requires [`Capabilities::keys`] for keys, [`Capabilities::detach`] for `OnRunning::Detach`,
    /// and [`Capabilities::history`] for [`NewJob::remember`].
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>>;

    /// Cancels jobs that are not running.
    ///
    /// Behaviour:
    /// - a `Cancelled` job never starts;
    /// - a leased job continues: the result is `AlreadyRunning`;
    /// - a dead or unknown job is `NotFound`.
    ///
    /// Requires [`Capabilities::cancel`].
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>>;

    /// Changes due time and first due time; id, payload and counts stay.
    ///
    /// Behaviour:
    /// - listeners wake if the new due time is earlier;
    /// - a job moved to a later time never fires before it;
    /// - a leased job does not change: the result is `AlreadyRunning`;
    /// - a dead or unknown job is `NotFound`.
    ///
    /// Requires [`Capabilities::reschedule`].
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>>;

    /// Subscribes to wake-up hints for these queues.
    ///
    /// `worker` is that of the claims. Hints may be lost, repeated or late, so listeners also poll.
    ///
    /// Behaviour: if a settlement makes room in a queue with a [`Flow`](crate::Flow) and a job is
    /// due, one of the workers whose claims found no room wakes.
    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups>;

    /// Leases due jobs, and returns when to claim again.
    ///
    /// Leases at most [`Want::max`](super::Want::max) jobs per queue and [`ClaimParams::limit`] in
    /// all.
    ///
    /// Behaviour:
    /// - the store's clock decides what is due. Within a queue, jobs are in due order; with
    ///   [`Capabilities::fifo`], equal times are in insertion order;
    /// - earlier wants come first. The store leases as many due jobs as you want, but may briefly
    ///   leave some to another claimer;
    /// - each token is larger than the job's earlier tokens;
    /// - paused queues yield no jobs and do not count for `next_due`;
    /// - a queue with a [`Flow`](crate::Flow) never has more than `max_running` leases, and a rate
    ///   counts the leases from their start. `next_due` is the time at which the limit may let a
    ///   job start;
    /// - [`Claimed::next_due`] is the earliest time at which the same call could return more jobs,
    ///   including lease expiry, also of the new leases. It may be too early with many wants, and
    ///   while jobs wait for their groups;
    /// - with `max == 0` a call leases nothing and still returns `next_due`;
    /// - a due job that the store cannot read becomes dead and is in [`Claimed::quarantined`].
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed>;

    /// Returns how long before the due time you may call [`claim`](Self::claim); zero by default.
    ///
    /// A store with slow claims returns about one claim's duration. Its `claim` still returns no
    /// job early.
    fn claim_ahead(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends leases, each with a [`Verdict`](super::Verdict).
    ///
    /// Behaviour: an expired lease or an old token changes nothing, and the result is `LostLease`.
    /// The batch's other settlements still apply.
    ///
    /// Requires [`Capabilities::again`] for [`Verdict::Again`](super::Verdict::Again), and
    /// [`Capabilities::flow`] for [`Verdict::Throttle`](super::Verdict::Throttle).
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Sets lease expiry to [`Renewal::lease_for`] from the store's current time, later or earlier
    /// than before.
    ///
    /// Behaviour: a lease no longer held is `LostLease`.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>>;

    /// Counts the jobs in these queues; in all queues by name if `queues` is empty.
    ///
    /// Behaviour: counts may be a second old. An unknown queue has zero counts.
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>>;

    /// Lists one page of a queue's jobs in one state.
    ///
    /// Behaviour: the order is by due time for scheduled and ready jobs, lease expiry for running
    /// ones, time of death for dead ones, and end time for ended ones.
    ///
    /// Requires [`Capabilities::browse`], and [`Capabilities::history`] for ended jobs.
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page>;

    /// Returns one job, live or dead, or `None`.
    ///
    /// Finds an ended job by id while the store remembers it. Requires [`Capabilities::browse`].
    async fn get(&self, job: &JobRef) -> Result<Option<JobView>>;

    /// Performs an administrative operation; see [`Operation`].
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport>;

    /// Counts a queue's scheduled and ready jobs by due time.
    ///
    /// Returns one count per pair of neighbouring `edges`, including the first edge and excluding
    /// the second.
    ///
    /// Behaviour: `edges` ascend. A paused queue's jobs count too.
    ///
    /// Requires [`Capabilities::forecast`]; `Unsupported` by default.
    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        let _ = (queue, edges);
        Err(Error::unsupported(self.name(), "forecasts").operation("forecast"))
    }

    /// Announces a runner to the store's other users; see [`Announcement`](super::Announcement).
    ///
    /// Behaviour: replaces the earlier announcement with this name. It disappears when its time is
    /// over, or earlier if the store restarts.
    ///
    /// Requires [`Capabilities::registry`]; `Unsupported` by default.
    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let _ = announcement;
        Err(Error::unsupported(self.name(), "announcements of runners").operation("announce"))
    }

    /// Returns runners with valid announcements, by name.
    ///
    /// Requires [`Capabilities::registry`]; `Unsupported` by default.
    async fn runners(&self) -> Result<Vec<Announced>> {
        Err(Error::unsupported(self.name(), "announcements of runners").operation("runners"))
    }

    /// Returns a statement that stores jobs in the caller's own transaction.
    ///
    /// Behaviour: executed and committed, it has the effect of [`schedule`](Self::schedule). The
    /// commit wakes listeners. `Unsupported` by default.
    fn schedule_statement(&self, jobs: Vec<NewJob>) -> Result<SqlStatement> {
        let _ = jobs;
        Err(Error::unsupported(self.name(), "SQL statements").operation("schedule"))
    }

    /// Returns a statement that ends a lease in the caller's own transaction, as `Done`.
    ///
    /// Behaviour: the statement fails if the lease is lost. `Unsupported` by default.
    fn done_statement(&self, lease: &Lease) -> Result<SqlStatement> {
        let _ = lease;
        Err(Error::unsupported(self.name(), "SQL statements").operation("settle"))
    }

    /// Checks the store's versions, settings and clock skew.
    ///
    /// If all is well, no finding is above [`Severity::Info`](super::Severity::Info).
    async fn check(&self) -> Vec<Finding>;

    /// Completes the calls in progress and releases the store.
    ///
    /// Behaviour: later fallible calls return `Closed`. You may close twice. A store that stopped
    /// because this version is too old returns `Incompatible` and still closes.
    async fn close(&self) -> Result<()>;
}
