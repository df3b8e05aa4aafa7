//! Tests for applications: time that the test turns, handlers in the same process, no server.
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
//! #     async fn handle(&self, _: JobContext, _: UnpaidOrder) -> HandlerResult { Ok(Outcome::Done) }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> dq::Result<()> {
//! let kit = TestKit::with(|runner| runner.handler(OrderTimeout)).await?;
//!
//! // The code under test gets `kit.dq()` and schedules as it always does.
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

mod context;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Clock, Dq, Due, Entropy, Event, Job, JobId, JobKey, JobState,
    MemoryBackend, Payload, Queue, QueueName, Result, Runner, RunnerBuilder, Timestamp, Verdict,
    VirtualClock,
};

pub use context::TestContext;

/// No handler under test takes that long, unless it waits for what does not come.
const STALL: Duration = Duration::from_secs(30);

/// An application's jobs and handlers on a memory store and a virtual clock.
#[derive(Debug)]
pub struct TestKit {
    dq: Dq,
    clock: Arc<VirtualClock>,
    runner: Runner,
    ran: Arc<Mutex<Vec<Ran>>>,
}

/// One run of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The queue.
    pub queue: QueueName,
    /// The job.
    pub id: JobId,
    /// The job's key.
    pub key: Option<JobKey>,
    /// When it ran, on the virtual clock.
    pub at: Timestamp,
    /// Which attempt it was; the first is 1.
    pub attempt: u32,
    /// What the store was told.
    pub verdict: Verdict,
}

impl Ran {
    /// What the store was told, in a word: `done`, `skipped`, `retry`, `snoozed`, `dead`.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self.verdict {
            Verdict::Done => "done",
            Verdict::Skip => "skipped",
            Verdict::Retry(_) => "retry",
            Verdict::Snooze(_) => "snoozed",
            Verdict::Dead { .. } => "dead",
            _ => "handed back",
        }
    }
}

impl TestKit {
    /// A kit for the annotated handlers of the linked crates, without state.
    ///
    /// # Errors
    /// What is wrong with the handlers; see [`RunnerBuilder::build`].
    pub async fn new() -> Result<Self> {
        Self::with(|runner| runner).await
    }

    /// A kit with everything that the application says to its runner: state, middleware, handlers.
    ///
    /// # Errors
    /// What is wrong with the handlers; see [`RunnerBuilder::build`].
    pub async fn with(change: impl FnOnce(RunnerBuilder) -> RunnerBuilder) -> Result<Self> {
        let clock = Arc::new(VirtualClock::default());
        let backend = Arc::new(MemoryBackend::new(clock.clone()));
        let dq = Dq::builder()
            .backend(backend)
            .clock(clock.clone())
            // The same ids and the same jitter in every run of the test.
            .entropy(Entropy::seeded(0))
            .connect()
            .await?;
        let ran: Arc<Mutex<Vec<Ran>>> = Arc::default();
        let (notes, now) = (Arc::clone(&ran), Arc::clone(&clock));
        let builder = dq.runner().observer(move |event: &Event<'_>| {
            if let Event::Finished { job, verdict, .. } = event {
                notes.lock().unwrap_or_else(PoisonError::into_inner).push(Ran {
                    queue: job.queue().clone(),
                    id: job.id(),
                    key: job.key().cloned(),
                    at: now.now(),
                    attempt: job.attempt(),
                    verdict: (*verdict).clone(),
                });
            }
        });
        let runner = change(builder).build()?;
        Ok(Self { dq, clock, runner, ran })
    }

    /// What the code under test schedules with.
    #[must_use]
    pub fn dq(&self) -> &Dq {
        &self.dq
    }

    /// The time that it is.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Turns the clock forward and runs every job that becomes due on the way, at its due time, in
    /// due order, one after the other; retries and jobs scheduled by handlers too. Returns what
    /// ran, in order.
    ///
    /// The clock stands still while a handler runs: a handler that waits on `ctx.sleep` would wait
    /// for ever, and the test panics. Advance by zero to run what is due already.
    ///
    /// # Panics
    /// If a handler does not end within 30 s of real time.
    pub async fn advance(&self, by: Duration) -> Vec<Ran> {
        let until = self.now() + by;
        loop {
            let ran = tokio::time::timeout(STALL, self.runner.run_due()).await.unwrap_or_else(|_| {
                panic!(
                    "a handler has run for {STALL:?} of real time; if it waits on `ctx.sleep`, it \
                     waits for ever, as the clock stands still while a handler runs"
                )
            });
            let ran = ran.expect("the memory store answers");
            match ran.next_due.filter(|due| *due <= until) {
                Some(due) => self.clock.set(due.max(self.now())),
                None => break,
            }
        }
        self.clock.set(until);
        std::mem::take(&mut *self.ran.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The jobs of a queue that wait for their time, in due order.
    ///
    /// # Panics
    /// If the queue's code is no valid name.
    pub async fn scheduled<Q: Queue>(&self) -> Vec<Job> {
        let queue = Q::queue().expect("a valid queue name");
        let mut jobs = Vec::new();
        for state in [JobState::Ready, JobState::Scheduled] {
            let mut after = None;
            loop {
                let params = BrowseParams { queue: &queue, state, after, limit: 1_000 };
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

    /// Asserts that a job with this key waits in the queue and is due then (a time, or a delay
    /// from now), and returns its payload.
    ///
    /// # Panics
    /// If there is no such job, saying what there is instead.
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
        // Caught here, as an async function would name the executor's line.
        let caller = std::panic::Location::caller();
        async move {
            let jobs = self.scheduled::<Q>().await;
            let found = jobs.iter().find(|job| job.key.as_ref().is_some_and(|k| k.as_str() == key));
            let Some(job) = found else {
                panic!(
                    "{caller}: no job with key {key:?} is scheduled in {}; there are {}",
                    Q::code(),
                    listing(&jobs)
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
    /// If there is one, saying when it is due.
    #[track_caller]
    pub fn assert_not_scheduled<Q: Queue>(&self, key: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let jobs = self.scheduled::<Q>().await;
            let found = jobs.iter().find(|job| job.key.as_ref().is_some_and(|k| k.as_str() == key));
            if let Some(job) = found {
                panic!("{caller}: a job with key {key:?} is scheduled for {}", job.due);
            }
        }
    }
}

fn listing(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "none at all".to_owned();
    }
    let line = |job: &Job| match &job.key {
        Some(key) => format!("{:?} at {}", key.as_str(), job.due),
        None => format!("one without a key at {}", job.due),
    };
    jobs.iter().map(line).collect::<Vec<_>>().join(", ")
}
