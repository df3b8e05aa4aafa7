//! The context of a handler's run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::state::StateMap;
use super::thread::HandlerThread;
use crate::backend::{Backend, FencingToken, LeasedJob, SqlStatement};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::model::{Headers, Job, JobId, JobKey, QueueName, Timestamp};

/// A handler's run: the job, its lease, and the runner. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    leased: LeasedJob,
    run: RunContext,
    thread: HandlerThread,
}

/// The runner's part of a [`JobContext`].
#[derive(Debug, Clone)]
pub struct RunContext {
    /// Values from the runner's `.state(value)`, and its [`Dq`](crate::Dq).
    pub state: Arc<StateMap>,
    /// Fires when the lease is lost, the timeout passes, or the grace period ends.
    pub cancelled: CancellationToken,
    /// The runner's clock.
    pub clock: Arc<dyn Clock>,
    /// When the handler started, by the store's clock.
    pub started: Timestamp,
    /// Maximum attempts for the job; per step, if it has several.
    pub max_attempts: u32,
    /// Steps in the queue's escalation; 0 without one.
    pub steps: u32,
    /// The runner's name.
    pub worker: Arc<str>,
    /// The job's store; `None` in unit tests.
    pub store: Option<Arc<dyn Backend>>,
    /// Whether the handler may end the job itself, by [`JobContext::done_statement`].
    pub may_end_job: Arc<AtomicBool>,
}

impl JobContext {
    /// Creates a context, to call a handler directly in a unit test.
    pub fn new(leased: LeasedJob, run: RunContext) -> Self {
        Self { inner: Arc::new(Inner { leased, run, thread: HandlerThread::default() }) }
    }

    /// Returns the job's id.
    pub fn id(&self) -> JobId {
        self.inner.leased.job.id
    }

    /// Returns the job's queue.
    pub fn queue(&self) -> &QueueName {
        &self.inner.leased.job.queue
    }

    /// Returns the job's key, if any.
    pub fn key(&self) -> Option<&JobKey> {
        self.inner.leased.job.key.as_ref()
    }

    /// Returns when this run was due.
    pub fn due(&self) -> Timestamp {
        self.inner.leased.job.due
    }

    /// Returns when the job was first due. Retries and snoozes change only [`Self::due`].
    pub fn first_due(&self) -> Timestamp {
        self.inner.leased.job.first_due
    }

    /// Returns how long after its due time the handler started.
    pub fn lateness(&self) -> Duration {
        self.inner.run.started.since(self.due())
    }

    /// Returns this attempt's number, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.leased.job.attempts.saturating_add(1)
    }

    /// Returns the maximum attempts for this job; per step, if it has several.
    pub fn max_attempts(&self) -> u32 {
        self.inner.run.max_attempts
    }

    /// Returns whether the job is dead if this run fails.
    pub fn is_last_attempt(&self) -> bool {
        self.attempt() >= self.max_attempts()
    }

    /// Returns the run's escalation step, from 0; 0 without an escalation.
    pub fn step(&self) -> u32 {
        self.inner.leased.job.step()
    }

    /// Returns whether this is the escalation's last step; `true` without an escalation.
    pub fn is_last_step(&self) -> bool {
        self.step().saturating_add(1) >= self.inner.run.steps
    }

    /// Returns how many times the job was leased, including this time.
    ///
    /// Leases given back before the handler started do not count.
    pub fn deliveries(&self) -> u32 {
        self.inner.leased.job.deliveries
    }

    /// Returns the job's headers.
    pub fn headers(&self) -> &Headers {
        &self.inner.leased.job.headers
    }

    /// Returns the nominal time of this schedule occurrence; `None` for other jobs.
    ///
    /// The time comes from the schedule, without jitter and however late the job runs.
    pub fn occurrence(&self) -> Option<Timestamp> {
        let millis = self.headers().get(Headers::OCCURRENCE)?.parse().ok()?;
        Some(Timestamp::from_millis(millis))
    }

    /// Returns the encoded payload.
    pub fn raw_payload(&self) -> &Bytes {
        &self.inner.leased.job.payload
    }

    /// Returns a number larger than in any earlier run of this job.
    ///
    /// Store it with the data your handler writes. If your database rejects smaller tokens, a
    /// handler that lost its lease unnoticed cannot overwrite newer data.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.leased.token
    }

    /// Returns an SQL statement that ends the job in your own transaction, as [`Outcome::Done`]
    /// does.
    ///
    /// Your changes and the job's end are then committed together: the changes happen exactly once.
    /// If the lease is lost, the statement fails, and so does your transaction. Return
    /// [`Outcome::Done`] after the commit, and an error if it failed.
    ///
    /// From this call on, a lost lease no longer cancels the run, because the store cannot tell it
    /// from a job that you have ended.
    ///
    /// ```ignore
    /// let done = context.done_statement()?;
    /// sqlx::query(done.sql()).bind(done.argument()).execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// ```
    ///
    /// [`Outcome::Done`]: crate::Outcome::Done
    ///
    /// # Errors
    /// `Unsupported` for a store without SQL, and in a unit test without a store.
    pub fn done_statement(&self) -> Result<SqlStatement> {
        const OPERATION: &str = "done_statement";
        let run = &self.inner.run;
        let store = run.store.as_ref().ok_or_else(|| {
            Error::unsupported("test context", "ending jobs").operation(OPERATION)
        })?;
        let statement = store
            .done_statement(&self.inner.leased.lease())
            .map_err(|error| error.operation(OPERATION))?;
        run.may_end_job.store(true, Ordering::Relaxed);
        Ok(statement)
    }

    /// Returns a value from the runner's `.state(value)`, or its [`Dq`](crate::Dq).
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.inner.run.state.get()
    }

    /// Returns the runner's name.
    pub fn worker(&self) -> &str {
        &self.inner.run.worker
    }

    /// Waits until this run should stop. Cancellation safe.
    ///
    /// A run should stop when the lease is lost, the timeout passes, or the grace period ends.
    pub async fn cancelled(&self) {
        self.inner.run.cancelled.cancelled().await;
    }

    /// Returns whether this run should stop.
    pub fn is_cancelled(&self) -> bool {
        self.inner.run.cancelled.is_cancelled()
    }

    /// Returns the runner's time, which is virtual in tests.
    pub fn now(&self) -> Timestamp {
        self.inner.run.clock.now()
    }

    /// Waits on the runner's clock, which is virtual in tests. Cancellation safe.
    pub async fn sleep(&self, delay: Duration) {
        self.inner.run.clock.sleep(delay).await;
    }

    /// Returns the job.
    pub fn job(&self) -> &Job {
        &self.inner.leased.job
    }

    pub(crate) fn cancellation(&self) -> &CancellationToken {
        &self.inner.run.cancelled
    }

    pub(crate) fn thread(&self) -> &HandlerThread {
        &self.inner.thread
    }
}
