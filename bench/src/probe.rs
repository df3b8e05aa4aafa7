//! The probe: a handler that only counts jobs and records how late they start.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dq::config::QueueSettings;
use dq::{
    DelayHandler, Dq, HandlerResult, JobContext, Outcome, QueueCode, QueueName, RunnerBuilder,
};
use dq_core::sync::lock;
use tokio::sync::Notify;

use crate::measure::{Stopwatch, Times};
use crate::plan::Result;
use crate::workload::{BULK, PAYLOAD, QUEUE, queues};

dq::queue!(
    pub(crate) Bench: String = QUEUE
);

/// Counts jobs that start. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Probe {
    inner: Arc<Inner>,
    queues: Vec<QueueName>,
}

struct InQueue {
    probe: Arc<Inner>,
    queue: QueueName,
}

struct Inner {
    expected: usize,
    started: AtomicUsize,
    all_started: Notify,
    lateness: Option<Mutex<Vec<Duration>>>,
    settings: QueueSettings,
}

impl Probe {
    /// Stops the runner when `expected` jobs have started.
    pub(crate) fn counting(expected: usize) -> Self {
        Self::new(expected, None, QueueSettings::default())
    }

    pub(crate) fn timing(expected: usize) -> Self {
        Self::new(expected, Some(Mutex::default()), QueueSettings::default())
    }

    /// Sets each queue's concurrency. Call it before the run: it resets the counts.
    pub(crate) fn concurrency(self, jobs: usize) -> Self {
        let settings = QueueSettings::new().concurrency(jobs);
        let lateness = self.inner.lateness.is_some().then(Mutex::default);
        Self { queues: self.queues, ..Self::new(self.inner.expected, lateness, settings) }
    }

    pub(crate) fn serving(self, queues: Vec<QueueName>) -> Self {
        Self { queues, ..self }
    }

    fn new(
        expected: usize,
        lateness: Option<Mutex<Vec<Duration>>>,
        settings: QueueSettings,
    ) -> Self {
        let (started, all_started) = (AtomicUsize::new(0), Notify::new());
        let inner = Arc::new(Inner { expected, started, all_started, lateness, settings });
        Self { inner, queues: queues(1) }
    }

    /// Runs jobs until the last expected one is settled. Returns a stopwatch started before the
    /// run.
    pub(crate) async fn run(&self, dq: &Dq) -> Result<Stopwatch> {
        let watch = Stopwatch::start();
        self.runner(dq).run_until(self.inner.all_started.notified()).await?;
        Ok(watch)
    }

    pub(crate) fn runner(&self, dq: &Dq) -> RunnerBuilder {
        let in_queue =
            |queue: &QueueName| InQueue { probe: self.inner.clone(), queue: queue.clone() };
        let runner = dq.runner().without_linked_handlers();
        self.queues.iter().map(in_queue).fold(runner, RunnerBuilder::handler)
    }

    pub(crate) fn lateness(&self) -> Times {
        let lateness = self.inner.lateness.as_ref();
        Times::new(lateness.map(|times| lock(times).clone()).unwrap_or_default())
    }
}

impl DelayHandler for InQueue {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.queue.to_string()
    }

    fn settings(&self) -> QueueSettings {
        self.probe.settings.clone()
    }

    async fn handle(&self, job: JobContext, _payload: String) -> HandlerResult {
        if let Some(lateness) = &self.probe.lateness {
            // The job context has whole milliseconds only.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let due = Duration::from_millis(job.due().as_millis().unsigned_abs());
            let late = now.saturating_sub(due);
            lock(lateness).push(late);
        }
        if self.probe.started.fetch_add(1, Ordering::Relaxed) + 1 == self.probe.expected {
            self.probe.all_started.notify_one();
        }
        Ok(Outcome::Done)
    }
}

/// Schedules jobs in bulks through the client, then runs them all. `jobs` must equal the number the
/// probe expects and be a multiple of [`BULK`]; the run never ends if it is not.
pub(crate) async fn schedule_and_run(dq: &Dq, probe: &Probe, jobs: usize) -> Result<()> {
    for _ in 0..jobs / BULK {
        // JSON adds two quotes.
        let job = |_| dq.schedule::<Bench>("x".repeat(PAYLOAD - 2));
        let _ = dq.schedule_many((0..BULK).map(job)).await?;
    }
    probe.run(dq).await.map(drop)
}

pub(crate) fn concurrency_name(concurrency: Option<usize>) -> String {
    concurrency
        .map_or_else(|| "default concurrency".to_owned(), |jobs| format!("concurrency {jobs}"))
}
