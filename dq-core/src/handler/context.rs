//! The context of one run of a handler.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::state::StateMap;
use super::thread::HandlerThread;
use crate::backend::{FencingToken, Lease, LeasedJob};
use crate::clock::Clock;
use crate::model::{Headers, Job, JobId, JobKey, QueueName, Timestamp};

/// One run of a handler: the job, its lease, and the runner. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    leased: LeasedJob,
    run: RunContext,
    /// The thread of a blocking handler.
    thread: HandlerThread,
}

/// The runner's part of a [`JobContext`].
#[derive(Debug, Clone)]
pub struct RunContext {
    /// Values given to the runner by `.state(value)`, and its [`Dq`](crate::Dq).
    pub state: Arc<StateMap>,
    /// Fires when the lease is lost, the timeout has passed, or the grace period is over.
    pub cancelled: CancellationToken,
    /// The runner's clock.
    pub clock: Arc<dyn Clock>,
    /// When the handler started, by the store's clock.
    pub started: Timestamp,
    /// Maximum number of attempts of the job; of each step, if it has several.
    pub max_attempts: u32,
    /// Number of steps of the queue's escalation; 0 if it has none.
    pub steps: u32,
    /// The name of the runner.
    pub worker: Arc<str>,
}

impl JobContext {
    /// A context for calling a handler directly, such as in a unit test.
    #[must_use]
    pub fn new(leased: LeasedJob, run: RunContext) -> Self {
        Self { inner: Arc::new(Inner { leased, run, thread: HandlerThread::default() }) }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.inner.leased.job.id
    }

    /// The job's queue.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.inner.leased.job.queue
    }

    /// The job's key, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&JobKey> {
        self.inner.leased.job.key.as_ref()
    }

    /// When this run was due.
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.inner.leased.job.due
    }

    /// When the job was due at first: a retry and a snooze change [`Self::due`] and leave this.
    #[must_use]
    pub fn first_due(&self) -> Timestamp {
        self.inner.leased.job.first_due
    }

    /// When the store accepted the job.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.inner.leased.job.created
    }

    /// How long after its due time the handler started.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.inner.run.started.since(self.due())
    }

    /// The number of this attempt; the first is 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.leased.job.attempts.saturating_add(1)
    }

    /// Maximum number of attempts of this job; of each step, if it has several.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.inner.run.max_attempts
    }

    /// Whether the job is dead if this run fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.attempt() >= self.max_attempts()
    }

    /// The step of the escalation that this run belongs to, from 0; 0 without an escalation.
    #[must_use]
    pub fn step(&self) -> u32 {
        self.inner.leased.job.step()
    }

    /// Whether no step of the escalation follows this one; `true` without an escalation.
    #[must_use]
    pub fn is_last_step(&self) -> bool {
        self.step().saturating_add(1) >= self.inner.run.steps
    }

    /// How many times this job was leased, including this time, without leases that were given back
    /// before the handler started.
    #[must_use]
    pub fn deliveries(&self) -> u32 {
        self.inner.leased.job.deliveries
    }

    /// The job's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.inner.leased.job.headers
    }

    /// The nominal time of this occurrence of a schedule: the time of the recurrence, without jitter
    /// and however late it runs. `None` if the job is not an occurrence.
    #[must_use]
    pub fn occurrence(&self) -> Option<Timestamp> {
        let millis = self.headers().get(Headers::OCCURRENCE)?.parse().ok()?;
        Some(Timestamp::from_millis(millis))
    }

    /// The encoded payload.
    #[must_use]
    pub fn raw_payload(&self) -> &Bytes {
        &self.inner.leased.job.payload
    }

    /// A number larger than in any earlier run of this job.
    ///
    /// Store it with the data that the handler writes. A store that refuses smaller tokens is
    /// protected from a handler that has lost its lease without noticing.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.leased.token
    }

    /// The lease of this run.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.inner.leased.lease()
    }

    /// A value given to the runner by `.state(value)`, or its [`Dq`](crate::Dq).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.inner.run.state.get()
    }

    /// The name of the runner.
    #[must_use]
    pub fn worker(&self) -> &str {
        &self.inner.run.worker
    }

    /// Waits until this run should stop: the lease is lost, the timeout has passed, or the runner's
    /// grace period is over. Cancellation safe.
    pub async fn cancelled(&self) {
        self.inner.run.cancelled.cancelled().await;
    }

    /// Whether this run should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.run.cancelled.is_cancelled()
    }

    /// The time of the runner's clock, which is virtual in tests.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.run.clock.now()
    }

    /// Waits on the runner's clock, which is virtual in tests. Cancellation safe.
    pub async fn sleep(&self, delay: Duration) {
        self.inner.run.clock.sleep(delay).await;
    }

    /// The job.
    #[must_use]
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
