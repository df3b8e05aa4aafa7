//! What a handler can ask about the job it was given.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::StateMap;
use crate::backend::{FencingToken, Lease, LeasedJob};
use crate::clock::Clock;
use crate::model::{Headers, JobId, JobKey, QueueName, Timestamp};

/// One run of a handler: the job, its lease, and the runner around it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    leased: LeasedJob,
    surroundings: Surroundings,
}

/// What the runner adds to a leased job.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The application's values.
    pub state: Arc<StateMap>,
    /// Fires when the lease is lost, the timeout has passed, or the grace period is over.
    pub cancelled: CancellationToken,
    /// The runner's clock.
    pub clock: Arc<dyn Clock>,
    /// When the handler started, by the store's clock.
    pub started: Timestamp,
    /// How many attempts this job has in all.
    pub max_attempts: u32,
    /// The label of the runner.
    pub worker: Arc<str>,
}

impl JobContext {
    /// A context made by hand, to call a handler in a unit test.
    #[must_use]
    pub fn new(leased: LeasedJob, surroundings: Surroundings) -> Self {
        Self { inner: Arc::new(Inner { leased, surroundings }) }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.inner.leased.job.id
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.inner.leased.job.queue
    }

    /// The caller's own name for the job.
    #[must_use]
    pub fn key(&self) -> Option<&JobKey> {
        self.inner.leased.job.key.as_ref()
    }

    /// When this run was due.
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.inner.leased.job.due
    }

    /// When the store accepted the job.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        self.inner.leased.job.created
    }

    /// How long after its due time the handler started.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.inner.surroundings.started.since(self.due())
    }

    /// Which attempt this is; the first is 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.leased.job.attempts.saturating_add(1)
    }

    /// How many attempts this job has in all.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.inner.surroundings.max_attempts
    }

    /// Whether a failure of this run makes the job dead.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.attempt() >= self.max_attempts()
    }

    /// How many leases were given out for this job, this one included.
    #[must_use]
    pub fn deliveries(&self) -> u32 {
        self.inner.leased.job.deliveries
    }

    /// Text beside the payload.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.inner.leased.job.headers
    }

    /// The payload's bytes as the store kept them.
    #[must_use]
    pub fn raw_payload(&self) -> &Bytes {
        &self.inner.leased.job.payload
    }

    /// Larger than in any earlier run of this job. Write it with what you write: a store that
    /// refuses smaller tokens is safe from a handler that lost its lease and does not know yet.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.leased.token
    }

    /// The lease under which this run happens.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.inner.leased.lease()
    }

    /// A value that was given to the runner by `.state(value)`.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.inner.surroundings.state.get()
    }

    /// The label of the runner.
    #[must_use]
    pub fn worker(&self) -> &str {
        &self.inner.surroundings.worker
    }

    /// Ends when this run should stop: the lease is lost, the timeout has passed, or the runner's
    /// grace period is over. Cancellation safe.
    pub async fn cancelled(&self) {
        self.inner.surroundings.cancelled.cancelled().await;
    }

    /// Whether this run should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.surroundings.cancelled.is_cancelled()
    }

    /// Now, by the runner's clock, which is virtual in tests.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.surroundings.clock.now()
    }

    /// Waits on the runner's clock, which is virtual in tests. Cancellation safe.
    pub async fn sleep(&self, delay: Duration) {
        self.inner.surroundings.clock.sleep(delay).await;
    }

    pub(crate) fn cancellation(&self) -> &CancellationToken {
        &self.inner.surroundings.cancelled
    }
}
