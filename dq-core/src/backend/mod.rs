//! The seam: what a store must do, and the words of the questions and answers.
//!
//! A backend implements [`Backend`]; everything else (validation, sugar, retries, the runner) is
//! built on top of it once. The behaviour suite of `dq-testkit` tests exactly what is written in
//! the *Behaviour* lists here.

mod capability;
mod check;
mod checked;
mod claim;
mod inspect;
mod layer;
mod operate;
mod schedule;
mod settle;
mod wakeup;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

pub use capability::Capabilities;
pub use check::{Finding, Severity};
pub use checked::Checked;
pub use claim::{ClaimParams, Claimed, FencingToken, Lease, LeasedJob, Renewal, Renewed, Want};
pub use inspect::{BrowseParams, Cursor, Page, QueueStats, Totals};
pub use layer::Layer;
pub use operate::{OperateReport, Operation};
pub use schedule::{Cancelled, Receipt, Reschedule, Rescheduled, Scheduled};
pub use settle::{Settled, Settlement, Verdict};
pub use wakeup::{Hint, Listeners, Waker, Wakeups};

use crate::error::Result;
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};

/// A store of delayed jobs.
///
/// Calls take batches and answer item by item in the order asked. An `Err` is about the whole
/// call. A call that needs a capability the backend lacks answers `Unsupported`, never `Ok`.
///
/// **Cancellation safety:** dropping the future of any method leaves the store consistent; the
/// call may or may not have taken effect. Leases granted by a dropped [`claim`](Self::claim)
/// lapse by themselves.
///
/// **Lapsed leases:** every method treats a job whose lease has ended as due again, at its old
/// due time, with `deliveries` and `losses` each one higher. No other process is needed for that.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// The backend's name in configuration and errors, such as `"sqlite"`.
    fn name(&self) -> &'static str;

    /// What this backend offers beyond the core of schedule, claim and settle.
    fn capabilities(&self) -> Capabilities;

    /// The store's clock; the process's own where the store has none.
    async fn now(&self) -> Result<Timestamp>;

    /// Stores jobs. On `Ok` they are as durable as the store is configured to make them.
    ///
    /// Behaviour:
    /// - a job whose id is in its queue already, live or dead, changes nothing: `Kept`
    ///   (`AlreadyRunning` if leased). Ids are unique in the world; a backend may look for them in
    ///   other queues too;
    /// - a key that is live already is settled by [`OnConflict`](crate::OnConflict); a leased job is never touched:
    ///   `AlreadyRunning`, and the new one is not stored;
    /// - a dead job does not hold its key;
    /// - a long batch may be stored in several atomic chunks; after an `Err` repeat the call with
    ///   the same ids;
    /// - wakes listeners if the new job is due earlier than all others of its queue.
    ///
    /// Requires [`Capabilities::keys`] for jobs with a key.
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>>;

    /// Takes jobs back.
    ///
    /// Behaviour:
    /// - after `Cancelled` the job never starts;
    /// - a leased job is `AlreadyRunning` and goes on; a dead or unknown one is `NotFound`.
    ///
    /// Requires [`Capabilities::cancel`].
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>>;

    /// Moves jobs to another due time, keeping id, payload and counts.
    ///
    /// Behaviour: an earlier time wakes listeners; a later one never fires early; a leased job is
    /// `AlreadyRunning`.
    ///
    /// Requires [`Capabilities::reschedule`].
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>>;

    /// Opens a source of hints for these queues. Hints may be lost, repeated or late; whoever
    /// listens keeps a timer and a sweep of their own.
    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups>;

    /// Leases due jobs, at most [`Want::max`] per queue and [`ClaimParams::limit`] in all, and says
    /// when to come again.
    ///
    /// Behaviour:
    /// - only jobs whose due time has come by the store's clock, oldest due first in each queue;
    ///   equal times in order of insertion;
    /// - each lease has a token larger than any earlier one for the job;
    /// - paused queues give nothing and are left out of `next_due`;
    /// - [`Claimed::next_due`] is the earliest time at which the same call could return more; the ends
    ///   of leases count, those just granted included;
    /// - asking for nothing (`max == 0`) leases nothing and still reports `next_due`.
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed>;

    /// How long before a job is due a claim for it may be made: about as long as a claim takes, for a
    /// store where that is long. [`claim`](Self::claim) then waits for the rest of the time, and still gives
    /// nothing before it is due.
    fn claim_ahead(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends leases with a verdict each.
    ///
    /// Behaviour: a lease whose token is not the job's current one, or that has lapsed, is
    /// answered `Stale` and changes nothing; the others of the batch are not affected.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Makes leases last for [`Renewal::lease_for`] from the store's now, longer or shorter than
    /// before.
    ///
    /// Behaviour: a lease that is no longer held is answered `Lost`.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>>;

    /// Counts of these queues in the order asked, or of all queues known to the store, by name,
    /// if `queues` is empty. A queue the store has never seen counts zero.
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>>;

    /// Lists jobs of one queue in one state: scheduled and ready ones in due order, running ones
    /// by the end of their lease, dead ones by the time of death.
    ///
    /// Requires [`Capabilities::browse`].
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page>;

    /// One job, live or dead. Requires [`Capabilities::browse`].
    async fn get(&self, job: &JobRef) -> Result<Option<JobView>>;

    /// An operator's intervention.
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport>;

    /// What an operator should know: versions, settings, skew. Empty when all is well.
    async fn check(&self) -> Vec<Finding>;

    /// Finishes what is in hand and releases the store. Later calls that can fail answer
    /// `Closed`. Idempotent.
    async fn close(&self) -> Result<()>;
}
