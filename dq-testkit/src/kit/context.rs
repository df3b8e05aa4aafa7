//! Builds the context with which a test calls a handler as a function.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    Clock, Entropy, FencingToken, Headers, Job, JobContext, JobKey, LeasedJob, QueueName,
    RunContext, StateMap, SystemClock,
};
use tokio_util::sync::CancellationToken;

/// Builds a [`JobContext`] without a runner, so that you can call a handler as a function.
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
    steps: u32,
    cancelled: CancellationToken,
}

impl TestContext {
    /// Creates the first attempt out of five for a job in the queue `TEST`, due now.
    pub fn new() -> Self {
        let now = SystemClock.now();
        let mut job = Job::new(
            Entropy::from_os().job_id(now),
            QueueName::new("TEST").expect("a valid name"),
            now,
            now,
            Bytes::new(),
        );
        job.deliveries = 1;
        Self { job, max_attempts: 5, steps: 0, cancelled: CancellationToken::new() }
    }

    /// Sets the job's key; by default there is none.
    ///
    /// # Panics
    /// If the key is not valid.
    pub fn key(mut self, key: &str) -> Self {
        self.job.key = Some(JobKey::new(key).expect("a valid key"));
        self
    }

    /// Sets the number of this attempt; the first is 1. The delivery count follows.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.job.attempts = attempt.saturating_sub(1);
        self.job.deliveries = attempt.max(1);
        self
    }

    /// Sets the maximum number of attempts.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the escalation step, from 0, and the step count.
    pub fn step(mut self, step: u32, of: u32) -> Self {
        self.job.headers.insert(Headers::STEP, step.to_string());
        self.steps = of;
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.job.headers.insert(name, value);
        self
    }

    /// Sets the handler's cancellation signal. Cancel the token to fire it.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.cancelled = token;
        self
    }

    /// Builds the context.
    #[must_use]
    pub fn build(self) -> JobContext {
        let now = SystemClock.now();
        let leased = LeasedJob::new(self.job, FencingToken(1), now);
        JobContext::new(
            leased,
            RunContext {
                steps: self.steps,
                state: Arc::new(StateMap::default()),
                cancelled: self.cancelled,
                clock: Arc::new(SystemClock),
                started: now,
                max_attempts: self.max_attempts,
                worker: "test".into(),
                store: None,
                may_end_job: Arc::default(),
            },
        )
    }
}

impl Default for TestContext {
    fn default() -> Self {
        Self::new()
    }
}
