//! The contract that every store fulfils: the `Backend` trait.

use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::capability::Capabilities;
use super::check::Finding;
use super::claim::{ClaimParams, Claimed, Renewal, Renewed};
use super::inspect::{Announced, Announcement, BrowseParams, Page, QueueStats};
use super::operate::{OperateReport, Operation};
use super::schedule::{Cancelled, Reschedule, Rescheduled, Scheduled};
use super::settle::{Settled, Settlement};
use super::wakeup::Wakeups;
use crate::error::{Error, Result};
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};

/// A store of delayed jobs.
///
/// Input validation, retries, typed payloads and the runner are built on this trait once, for all
/// stores. The behaviour suite of `dq-testkit` tests the promises in the *Behaviour* lists.
///
/// # States
/// A stored job *waits* (it is scheduled or, once due, ready), is *leased* (running), or is *dead*.
/// A job that waits or is leased is *live*. A job that leaves the store has *ended*: it is done,
/// skipped, cancelled, replaced or removed.
///
/// # Ended jobs
/// With [`Capabilities::history`], a store remembers jobs that have ended, without payload and
/// headers: per queue the latest ones within the [`HistoryLimit`](crate::HistoryLimit) that
/// [`Environment`](crate::config::Environment) gives for it. [`get`](Self::get) and
/// [`browse`](Self::browse) return them in the state `Ended`, and [`schedule`](Self::schedule) stores
/// none of them again; it may take some more for remembered that are just beyond the maximum number.
/// No other method sees them.
///
/// The id of a job with [`NewJob::remember`] is *pinned* for that time after its end, whatever the
/// limits.
///
/// # Batches
/// Methods that take several items return one result per item, in the same order. An `Err` concerns
/// the whole call.
///
/// # Expired leases
/// Every method treats a job whose lease has ended as due again, at its old due time. Its
/// `deliveries` still include that lease, and `losses` is one higher. This needs no background
/// process.
///
/// A store without a clock of its own may measure a lease in each process, from when that process has
/// seen it. A process that has just started then waits for its whole length;
/// [`Claimed::next_due`] tells how long.
///
/// # Cancellation safety
/// Dropping the future of any method leaves the store consistent; the call may or may not have
/// taken effect. Leases granted by a dropped [`claim`](Self::claim) are given back at once if the
/// store can, and otherwise expire as usual.
///
/// # Errors
/// Any fallible method may return these kinds of [`Error`](crate::Error):
/// - `Unavailable`: the store cannot be reached;
/// - `OutcomeUnknown`: the connection was lost during the call, which may have taken effect;
/// - `Full`, `ReadOnly`: the store cannot accept writes;
/// - `Incompatible`: the store contains data of another program or of an unknown version;
/// - `Unsupported`: the backend lacks the capability that the call requires; it never returns `Ok`
///   instead;
/// - `Config`: the store does not permit its user the call, or its settings prevent it;
/// - `InvalidInput`: an item is larger than the store can hold;
/// - `Codec`: a payload does not fit the encoding that the store is set to;
/// - `Internal`: a bug;
/// - `Closed`: [`close`](Self::close) has been called.
#[async_trait]
pub trait Backend: Any + Debug + Send + Sync {
    /// The name of the backend in the configuration and in errors, such as `"sqlite"`.
    fn name(&self) -> &'static str;

    /// The features that this backend offers beyond schedule, claim, settle and renew.
    fn capabilities(&self) -> Capabilities;

    /// The backend that this one wraps; `None` by default. [`Layer`](super::Layer) returns the
    /// inner one, so that [`Dq::backend_as`](crate::Dq::backend_as) finds it.
    fn wrapped(&self) -> Option<&dyn Backend> {
        None
    }

    /// The time by the store's clock, or by this process's clock if the store has none.
    async fn now(&self) -> Result<Timestamp>;

    /// Stores jobs. After `Ok` they are as durable as the store is configured to make them.
    ///
    /// Behaviour:
    /// - a job whose id is already in its queue, live or dead, changes nothing: the result is
    ///   `Created` with the receipt of that job, as for the call that stored it. Ids are globally
    ///   unique, so a backend may also refuse an id that is in another queue, with `Kept`;
    /// - a job that has ended, in whatever way, is not stored again while its id is pinned, or while
    ///   the history of its queue has it, so that [`get`](Self::get) returns it: the result is
    ///   `Ended`, with the receipt of the job that has ended. No other job changes, whatever the key
    ///   and the policies of the new one;
    /// - if a live job of the queue has the same key, [`OnConflict`](crate::OnConflict) decides
    ///   which of the two stays. A leased job always stays: the result is `AlreadyRunning`, and the
    ///   new job is not stored. With [`OnRunning::Detach`](crate::OnRunning::Detach), the leased job
    ///   loses its key and the new job is stored with it;
    /// - a dead job does not occupy its key;
    /// - a large batch may be stored in several atomic chunks. After an `Err`, repeat the call with
    ///   the same ids. A job that has ended in between is then stored again only if the store
    ///   remembers nothing of it;
    /// - listeners are woken if the new job is due before all others of its queue.
    ///
    /// Requires [`Capabilities::keys`] for jobs with a key, [`Capabilities::detach`] for
    /// `OnRunning::Detach`, and [`Capabilities::history`] for [`NewJob::remember`].
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>>;

    /// Cancels jobs that do not run.
    ///
    /// Behaviour:
    /// - after `Cancelled` the job never starts;
    /// - a leased job continues: the result is `AlreadyRunning`;
    /// - for a dead or unknown job, the result is `NotFound`.
    ///
    /// Requires [`Capabilities::cancel`].
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>>;

    /// Changes the due time and the first due time of jobs; id, payload and counts stay.
    ///
    /// Behaviour:
    /// - listeners are woken if the new due time is earlier;
    /// - a job that is moved to a later time never fires before it;
    /// - a leased job is not changed: the result is `AlreadyRunning`;
    /// - for a dead or unknown job, the result is `NotFound`.
    ///
    /// Requires [`Capabilities::reschedule`].
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>>;

    /// Subscribes to wake-up hints for these queues.
    ///
    /// Hints may be lost, repeated or late. Listeners must therefore also poll: at the next due
    /// time and at regular intervals.
    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups>;

    /// Leases due jobs, at most [`Want::max`](super::Want::max) per queue and
    /// [`ClaimParams::limit`] in all, and returns when to claim again.
    ///
    /// Behaviour:
    /// - only jobs that are due by the store's clock are leased; within a queue those of one answer
    ///   are ordered by due time, with [`Capabilities::fifo`] equal times by insertion;
    /// - as many due jobs are leased as are asked for, first those of earlier wants, but a store may
    ///   leave some to another claimer for a moment;
    /// - the token of each lease is larger than all earlier tokens of the job;
    /// - paused queues yield no jobs and do not count for `next_due`;
    /// - [`Claimed::next_due`] is the earliest time at which the same call could return more jobs.
    ///   It includes the ends of leases, also of those just granted. With many wants it may be
    ///   earlier: the claim that follows then finds nothing;
    /// - a call that asks for no jobs (`max == 0`) leases none and still returns `next_due`;
    /// - a due job that the store cannot read becomes dead, and is returned in
    ///   [`Claimed::quarantined`].
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed>;

    /// How long before a job is due [`claim`](Self::claim) may be called for it; zero by default.
    ///
    /// For a store with slow claims, this is about the duration of one. `claim` then waits out the
    /// rest of the time, so that it still returns no job before it is due.
    fn claim_ahead(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends leases, each with the [`Verdict`](super::Verdict) on its job.
    ///
    /// Behaviour: a lease that has expired, or whose token is not the current one of the job,
    /// changes nothing: the result is `Stale`. Other settlements of the batch are not affected.
    ///
    /// Requires [`Capabilities::again`] for [`Verdict::Again`](super::Verdict::Again).
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Sets the ends of leases to [`Renewal::lease_for`] from the store's current time, which may
    /// be later or earlier than before.
    ///
    /// Behaviour: for a lease that is no longer held, the result is `Lost`.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>>;

    /// Counts the jobs of these queues; of all queues in the store, ordered by name, if `queues` is
    /// empty. The counts may be up to a second old.
    ///
    /// Behaviour: for a queue that the store has never seen, all counts are zero.
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>>;

    /// Lists one page of the jobs of a queue that are in one state.
    ///
    /// Behaviour: scheduled and ready jobs are ordered by due time, running ones by the end of
    /// their lease, dead ones by the time of death, ended ones by the time of their end.
    ///
    /// Requires [`Capabilities::browse`], and [`Capabilities::history`] for ended jobs.
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page>;

    /// Returns one job, live or dead, or `None` if it is not in the store. An ended job is returned,
    /// by id, as long as the store remembers it.
    ///
    /// Requires [`Capabilities::browse`].
    async fn get(&self, job: &JobRef) -> Result<Option<JobView>>;

    /// Performs an administrative operation on a queue; see [`Operation`] for what each one does
    /// and requires.
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport>;

    /// Counts the scheduled and ready jobs of a queue by due time: one number for each pair of
    /// neighbouring `edges`, of the jobs that are due from the first until before the second.
    ///
    /// Behaviour: `edges` ascend. Jobs of a paused queue count too.
    ///
    /// Requires [`Capabilities::forecast`]; `Unsupported` by default.
    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        let _ = (queue, edges);
        Err(Error::unsupported(self.name(), "forecasts").operation("forecast"))
    }

    /// Tells the other users of the store that a runner exists; see
    /// [`Announcement`](super::Announcement).
    ///
    /// Behaviour: replaces the earlier announcement of the same name. It is gone when its time is
    /// over. A store that keeps announcements in memory may lose them earlier, when it is restarted.
    ///
    /// Requires [`Capabilities::registry`]; `Unsupported` by default.
    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let _ = announcement;
        Err(Error::unsupported(self.name(), "announcements of runners").operation("announce"))
    }

    /// The runners whose announcements are valid, ordered by name.
    ///
    /// Requires [`Capabilities::registry`]; `Unsupported` by default.
    async fn runners(&self) -> Result<Vec<Announced>> {
        Err(Error::unsupported(self.name(), "announcements of runners").operation("runners"))
    }

    /// Checks versions, settings and clock skew of the store. If all is well, no finding is above
    /// [`Severity::Info`](super::Severity::Info).
    async fn check(&self) -> Vec<Finding>;

    /// Completes the calls in progress and releases the store.
    ///
    /// Behaviour: later fallible calls return `Closed`. Closing twice is allowed. A store that stopped
    /// because this version is too old returns `Incompatible`, and is closed all the same.
    async fn close(&self) -> Result<()>;
}
