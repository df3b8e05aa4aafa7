//! Contexts for calling a handler as the function that it is.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    Clock, Entropy, FencingToken, Headers, Job, JobContext, JobKey, LeasedJob, QueueName,
    RunContext, StateMap, SystemClock,
};
use tokio_util::sync::CancellationToken;

/// Makes a [`JobContext`] without a runner.
///
/// ```
/// # use dq_testkit::TestContext;
/// let ctx = TestContext::new().key("order-1001").attempt(3).build();
/// assert_eq!(ctx.attempt(), 3);
/// ```
#[derive(Debug)]
#[must_use = "call `build`"]
pub struct TestContext {
    job: Job,
    max_attempts: u32,
    cancelled: CancellationToken,
}

impl TestContext {
    /// A first attempt, due now, of five.
    pub fn new() -> Self {
        let now = SystemClock.now();
        let job = Job {
            id: Entropy::from_os().job_id(now),
            queue: QueueName::new("TEST").expect("a valid name"),
            key: None,
            due: now,
            created: now,
            payload: Bytes::new(),
            headers: Headers::new(),
            max_attempts: None,
            attempts: 0,
            deliveries: 1,
            losses: 0,
        };
        Self { job, max_attempts: 5, cancelled: CancellationToken::new() }
    }

    /// The job's key.
    ///
    /// # Panics
    /// If no job can have it.
    pub fn key(mut self, key: &str) -> Self {
        self.job.key = Some(JobKey::new(key).expect("a valid key"));
        self
    }

    /// Which attempt it is; the first is 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.job.attempts = attempt.saturating_sub(1);
        self
    }

    /// How many attempts there are.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Text beside the payload.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.job.headers.insert(name, value);
        self
    }

    /// Fires the handler's cancellation signal when the token is cancelled.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.cancelled = token;
        self
    }

    /// The context.
    #[must_use]
    pub fn build(self) -> JobContext {
        let now = SystemClock.now();
        let leased = LeasedJob { job: self.job, token: FencingToken(1), leased_until: now };
        JobContext::new(
            leased,
            RunContext {
                state: Arc::new(StateMap::default()),
                cancelled: self.cancelled,
                clock: Arc::new(SystemClock),
                started: now,
                max_attempts: self.max_attempts,
                worker: "test".into(),
            },
        )
    }
}

impl Default for TestContext {
    fn default() -> Self {
        Self::new()
    }
}
