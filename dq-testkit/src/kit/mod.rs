//! Runs an application's handlers in a test, on a virtual clock and without a server.
//!
//! ```
//! # use dq_core as dq;
//! # use dq::{DurationExt, HandlerResult, JobContext, Outcome, QueueCode};
//! # use dq_testkit::TestKit;
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct UnpaidOrder { id: u64 }
//! # dq::queue!(ORDER_TIMEOUT: UnpaidOrder);
//! # struct OrderTimeout;
//! # impl dq::DelayHandler for OrderTimeout {
//! #     type Payload = UnpaidOrder;
//! #     fn code(&self) -> impl QueueCode { "ORDER_TIMEOUT" }
//! # async fn handle(&self, _: JobContext, _: UnpaidOrder) -> HandlerResult { Ok(Outcome::Done) }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> dq::Result<()> {
//! let kit = TestKit::with(|runner| runner.handler(OrderTimeout)).await?;
//!
//! // The code under test gets `kit.dq()` and schedules as usual.
//! kit.dq()
//!     .schedule::<ORDER_TIMEOUT>(UnpaidOrder { id: 1001 })
//!     .after(15.minutes())
//!     .key("order-1001")
//!     .await?;
//!
//! let order: UnpaidOrder = kit.assert_scheduled::<ORDER_TIMEOUT>("order-1001", 15.minutes()).await;
//! assert_eq!(order.id, 1001);
//!
//! assert!(kit.advance(14.minutes()).await.is_empty());
//! let ran = kit.advance(1.minutes()).await;
//! assert_eq!(ran[0].outcome(), "done");
//! # Ok(())
//! # }
//! ```
//!
//! # Schedules
//!
//! A kit does not store the schedules that handlers declare, so that a test runs no other handlers.
//! Use [`TestKit::with_schedules`] to store them.
//!
//! # State
//!
//! A kit serves all handlers in the linked crates, but you only give it the state that the test
//! needs. When a due job's handler asks for a missing `State<T>`, [`try_advance`] returns
//! `MissingState`, which names the handler, the type and the remedy. [`advance`] panics with it.
//!
//! Queues that you name with [`RunnerBuilder::only`] are the exception: you must give their state
//! when you create the kit.
//!
//! [`advance`]: TestKit::advance
//! [`try_advance`]: TestKit::try_advance

mod context;

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{
    Backend, BrowseParams, Clock, Dq, Due, Entropy, Error, Event, HistoryLimit, HistoryLimits, Job,
    JobId, JobKey, JobState, MemoryBackend, Payload, Queue, QueueName, Result, Runner,
    RunnerBuilder, Timestamp, Verdict, VirtualClock,
};

pub use context::TestContext;

/// Real time for all jobs with one due time.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// An application's jobs and handlers, on a memory store and a virtual clock.
#[derive(Debug)]
pub struct TestKit {
    dq: Dq,
    clock: Arc<VirtualClock>,
    runner: Runner,
    /// These queues are not served.
    missing_state: BTreeMap<QueueName, Error>,
    /// Not returned by `advance` yet.
    runs: Arc<Mutex<Vec<HandlerRun>>>,
}

/// One handler run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerRun {
    /// The job's queue.
    pub queue: QueueName,
    /// The job's id.
    pub id: JobId,
    /// The job's key.
    pub key: Option<JobKey>,
    /// When the run ended, on the virtual clock.
    pub at: Timestamp,
    /// The attempt number; the first is 1.
    pub attempt: u32,
    /// How the runner settled the job in the store.
    pub verdict: Verdict,
}

impl HandlerRun {
    /// Returns the [`verdict`](Self::verdict) as a word, for assertions.
    ///
    /// | Word | The handler … |
    /// |---|---|
    /// | `done` | succeeded |
    /// | `skipped` | had nothing to do |
    /// | `retry` | failed; the job runs again after its backoff |
    /// | `snoozed` | postponed the job |
    /// | `throttled` | postponed the job, and all others of the queue |
    /// | `again` | gave the job its next step |
    /// | `dead` | rejected the job, failed for the last time or asked for a step after the last, or the payload did not decode |
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self.verdict {
            Verdict::Done => "done",
            Verdict::Skip { .. } => "skipped",
            Verdict::Retry { .. } => "retry",
            Verdict::Snooze(_) => "snoozed",
            Verdict::Throttle(_) => "throttled",
            Verdict::Again { .. } => "again",
            Verdict::Dead { .. } => "dead",
            // A later version's variant. A released job has no finished run.
            _ => "unknown",
        }
    }
}

impl TestKit {
    /// Creates a kit without state for the annotated handlers in the linked crates.
    ///
    /// # Errors
    /// The same as for [`with`](Self::with).
    pub async fn new() -> Result<Self> {
        Self::with(|runner| runner).await
    }

    /// Creates a kit with your runner's state, middleware and handlers.
    ///
    /// # Errors
    /// The same as for [`RunnerBuilder::build`], but `MissingState` only for queues that you name
    /// with [`RunnerBuilder::only`] (see [State](self#state)).
    pub async fn with(configure: impl FnOnce(RunnerBuilder) -> RunnerBuilder) -> Result<Self> {
        Self::with_schedules(|builder| configure(builder.without_schedules())).await
    }

    /// Creates a kit like [`with`](Self::with), and runs the schedules that handlers declare.
    ///
    /// The first call to [`advance`](Self::advance) stores them.
    ///
    /// # Errors
    /// The same as for [`with`](Self::with), and the schedule errors from [`RunnerBuilder::build`].
    pub async fn with_schedules(
        configure: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
    ) -> Result<Self> {
        let clock = Arc::new(VirtualClock::default());
        let history = HistoryLimits::all(HistoryLimit::default());
        let backend = Arc::new(MemoryBackend::with_history(clock.clone(), history));
        let dq = Dq::builder()
            .backend(backend)
            .clock(clock.clone())
            // A fixed seed gives the same ids and jitter in every run.
            .entropy(Entropy::seeded(0))
            .connect()
            .await?;
        let runs: Arc<Mutex<Vec<HandlerRun>>> = Arc::default();
        let (finished, now) = (Arc::clone(&runs), Arc::clone(&clock));
        let builder = dq.runner().observer(move |event: &Event<'_>| {
            if let Event::Finished { job, verdict, .. } = event
                // Schedule jobs do not belong to the application.
                && !job.queue().is_reserved()
            {
                lock(&finished).push(HandlerRun {
                    queue: job.queue().clone(),
                    id: job.id(),
                    key: job.key().cloned(),
                    at: now.now(),
                    attempt: job.attempt(),
                    verdict: (*verdict).clone(),
                });
            }
        });
        let (runner, missing_state) = configure(builder).build_with_given_state()?;
        Ok(Self { dq, clock, runner, missing_state, runs })
    }

    /// Returns the client for the code under test.
    #[must_use]
    pub fn dq(&self) -> &Dq {
        &self.dq
    }

    /// Returns the time on the virtual clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the clock, runs every job that becomes due, and returns the runs in order.
    ///
    /// Jobs run one by one in due order, each at its due time, including retries and jobs that
    /// handlers schedule.
    ///
    /// The clock stands still while a handler runs, so `ctx.sleep` in a handler never returns.
    /// Advance by zero to run jobs that are already due.
    ///
    /// # Panics
    /// If a due job's handler asks for missing state (see [`try_advance`]), or if the jobs with one
    /// due time take more than 30 s of real time.
    ///
    /// [`try_advance`]: Self::try_advance
    #[track_caller]
    pub fn advance(&self, by: Duration) -> impl Future<Output = Vec<HandlerRun>> {
        // An async function reports the executor's line.
        let caller = Location::caller();
        async move {
            match self.try_advance(by).await {
                Ok(runs) => runs,
                Err(error) => panic!("{caller}: {error}"),
            }
        }
    }

    /// Advances like [`advance`](Self::advance), but returns an error if a handler's state is
    /// missing.
    ///
    /// # Errors
    /// `MissingState` if a due job's handler asks for state that you did not give. The clock then
    /// stands at the job's due time. The next call that succeeds also returns the runs so far.
    ///
    /// # Panics
    /// If the jobs with one due time take more than 30 s of real time.
    pub async fn try_advance(&self, by: Duration) -> Result<Vec<HandlerRun>> {
        let end = self.now() + by;
        loop {
            let result = tokio::time::timeout(STUCK_AFTER, self.runner.run_due()).await;
            let report = result.unwrap_or_else(|_| {
                panic!(
                    "the jobs due now have run for {STUCK_AFTER:?} of real time; `ctx.sleep` in a handler \
                     never returns, as the clock of the kit does not move while a handler runs"
                )
            })?;
            let unserved_due = self.next_due_without_state().await?;
            let next_due = report.next_due.into_iter().chain(unserved_due).min();
            match next_due.filter(|due| *due <= end) {
                Some(due) => self.clock.set(due.max(self.now())),
                None => break,
            }
        }
        self.clock.set(end);
        Ok(std::mem::take(&mut *lock(&self.runs)))
    }

    /// Returns the next due time in `missing_state`, or the error if a job is due now.
    async fn next_due_without_state(&self) -> Result<Option<Timestamp>> {
        if self.missing_state.is_empty() {
            return Ok(None);
        }
        let queues: Vec<QueueName> = self.missing_state.keys().cloned().collect();
        let mut stats = self.dq.backend().stats(&queues).await?;
        // Paused queues run no job.
        stats.retain(|stats| !stats.paused);
        match stats.iter().find(|stats| stats.ready > 0) {
            Some(stats) => {
                let error = self.missing_state[&stats.queue].clone();
                Err(error.remedy(
                    "create the kit with the value, which must be of exactly this type: \
                     `TestKit::with(|runner| runner.state(value))`",
                ))
            }
            None => Ok(stats.iter().filter_map(|stats| stats.next_due).min()),
        }
    }

    /// Returns a queue's waiting jobs in due order.
    ///
    /// # Panics
    /// If the queue's code is not a valid queue name.
    pub async fn scheduled<Q: Queue>(&self) -> Vec<Job> {
        let queue = Q::queue().expect("a valid queue name");
        let mut jobs = Vec::new();
        for state in [JobState::Ready, JobState::Scheduled] {
            let mut after = None;
            loop {
                let params =
                    BrowseParams::new(&queue, state).after(after).limit(1_000).payloads(true);
                let page =
                    self.dq.backend().browse(params).await.expect("the memory store answers");
                jobs.extend(page.jobs.into_iter().map(|view| view.job));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        jobs
    }

    /// Asserts that a job with this key waits in the queue with this due time, and returns its
    /// payload.
    ///
    /// `due` is a point in time or a delay from now.
    ///
    /// # Panics
    /// If no waiting job has this key (the message lists all), if the job is due at another time,
    /// or if its payload does not decode.
    #[track_caller]
    pub fn assert_scheduled<Q: Queue>(
        &self,
        key: &str,
        due: impl Into<Due>,
    ) -> impl Future<Output = Q::Payload>
    where
        Q::Payload: Payload,
    {
        let due = due.into().resolve(self.now());
        let caller = Location::caller();
        async move {
            let jobs = self.scheduled::<Q>().await;
            let Some(job) = find_by_key(&jobs, key) else {
                panic!(
                    "{caller}: no job with key {key:?} is scheduled in {}; scheduled: {}",
                    Q::code(),
                    describe(&jobs)
                );
            };
            assert!(
                job.due == due,
                "{caller}: the job with key {key:?} is due at {}, not at {due}",
                job.due
            );
            match serde_json::from_slice(&job.payload) {
                Ok(payload) => payload,
                Err(error) => panic!("{caller}: the payload does not decode: {error}"),
            }
        }
    }

    /// Asserts that no job with this key waits in the queue.
    ///
    /// # Panics
    /// If there is one; the message states its due time.
    #[track_caller]
    pub fn assert_not_scheduled<Q: Queue>(&self, key: &str) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            if let Some(job) = find_by_key(&self.scheduled::<Q>().await, key) {
                panic!("{caller}: a job with key {key:?} is scheduled; it is due at {}", job.due);
            }
        }
    }
}

fn find_by_key<'a>(jobs: &'a [Job], key: &str) -> Option<&'a Job> {
    jobs.iter().find(|job| job.key.as_ref().is_some_and(|found| found.as_str() == key))
}

fn describe(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "none".to_owned();
    }
    let line = |job: &Job| match &job.key {
        Some(key) => format!("{:?} at {}", key.as_str(), job.due),
        None => format!("a job without a key at {}", job.due),
    };
    jobs.iter().map(line).collect::<Vec<_>>().join(", ")
}
