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

use crate::measure::{Result, Stopwatch, Times};
use crate::workload::{QUEUE, queues};

dq::queue!(
    pub(crate) Bench: String = QUEUE
);

/// Counts jobs that start. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Probe {
    counts: Arc<Counts>,
    queues: Vec<QueueName>,
    settings: QueueSettings,
}

struct Counts {
    expected: usize,
    started: AtomicUsize,
    all_started: Notify,
    lateness: Option<Mutex<Vec<Duration>>>,
}

struct InQueue {
    queue: QueueName,
    settings: QueueSettings,
    counts: Arc<Counts>,
}

impl Probe {
    /// Counts up to `expected` jobs; then the runner stops.
    pub(crate) fn counting(expected: usize) -> Self {
        Self::new(expected, None)
    }

    /// Also records how late each job starts.
    pub(crate) fn timing(expected: usize) -> Self {
        Self::new(expected, Some(Mutex::default()))
    }

    fn new(expected: usize, lateness: Option<Mutex<Vec<Duration>>>) -> Self {
        let (started, all_started) = (AtomicUsize::new(0), Notify::new());
        let counts = Arc::new(Counts { expected, started, all_started, lateness });
        Self { counts, queues: queues(1), settings: QueueSettings::default() }
    }

    pub(crate) fn concurrency(self, jobs: Option<usize>) -> Self {
        match jobs {
            Some(jobs) => self.settings(|settings| settings.concurrency(jobs)),
            None => self,
        }
    }

    pub(crate) fn settings(self, set: impl FnOnce(QueueSettings) -> QueueSettings) -> Self {
        Self { settings: set(self.settings.clone()), ..self }
    }

    pub(crate) fn serving(self, queues: Vec<QueueName>) -> Self {
        Self { queues, ..self }
    }

    /// Runs jobs until the last expected one has started, and its settlement, because stopping a
    /// runner waits for its jobs. Returns a stopwatch started before the run.
    pub(crate) async fn run(&self, dq: &Dq) -> Result<Stopwatch> {
        let watch = Stopwatch::start();
        self.runner(dq).run_until(self.counts.all_started.notified()).await?;
        Ok(watch)
    }

    pub(crate) fn runner(&self, dq: &Dq) -> RunnerBuilder {
        let in_queue = |queue: &QueueName| InQueue {
            queue: queue.clone(),
            settings: self.settings.clone(),
            counts: Arc::clone(&self.counts),
        };
        let runner = dq.runner().without_linked_handlers();
        self.queues.iter().map(in_queue).fold(runner, RunnerBuilder::handler)
    }

    pub(crate) fn lateness(&self) -> Times {
        Times::new(self.take_lateness())
    }

    /// Returns the times since the last call.
    pub(crate) fn take_lateness(&self) -> Vec<Duration> {
        let lateness = self.counts.lateness.as_ref();
        lateness.map(|times| std::mem::take(&mut *lock(times))).unwrap_or_default()
    }
}

impl DelayHandler for InQueue {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.queue.to_string()
    }

    fn settings(&self) -> QueueSettings {
        self.settings.clone()
    }

    async fn handle(&self, job: JobContext, _payload: String) -> HandlerResult {
        let counts = &self.counts;
        if let Some(lateness) = &counts.lateness {
            // The job context has whole milliseconds only.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let due = Duration::from_millis(job.due().as_millis().unsigned_abs());
            lock(lateness).push(now.saturating_sub(due));
        }
        if counts.started.fetch_add(1, Ordering::Relaxed) + 1 == counts.expected {
            counts.all_started.notify_one();
        }
        Ok(Outcome::Done)
    }
}

pub(crate) fn concurrency_name(concurrency: Option<usize>) -> String {
    concurrency
        .map_or_else(|| "default concurrency".to_owned(), |jobs| format!("concurrency {jobs}"))
}
