//! Contexts for tests that call a handler directly.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    Clock, Entropy, FencingToken, Headers, Job, JobContext, JobKey, LeasedJob, QueueName,
    RunContext, StateMap, SystemClock,
};
use tokio_util::sync::CancellationToken;

/// Builds a [`JobContext`] without a runner, to call a handler as a function.
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
    /// The context of a job in the queue `TEST` that is due now: its first attempt of five.
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

    /// Sets the job's key; without it the job has none.
    ///
    /// # Panics
    /// If the key is not valid.
    pub fn key(mut self, key: &str) -> Self {
        self.job.key = Some(JobKey::new(key).expect("a valid key"));
        self
    }

    /// Sets the number of this attempt; the first is 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.job.attempts = attempt.saturating_sub(1);
        self
    }

    /// Sets the maximum number of attempts.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.job.headers.insert(name, value);
        self
    }

    /// Sets the handler's cancellation signal, which the test fires by cancelling the token.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.cancelled = token;
        self
    }

    /// Builds the context.
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
