//! A handler that does nothing but note how late it was started.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use dq::config::QueueSettings;
use dq::{DelayHandler, Dq, HandlerResult, JobContext, Outcome, QueueCode};
use tokio::sync::Notify;

use crate::Result;
use crate::measure::{Stopwatch, Times};
use crate::workload::QUEUE;

dq::queue!(
    /// The queue that the probe handles.
    pub(crate) Bench: String = QUEUE
);

/// Counts the jobs it is given. Clones are one probe.
#[derive(Clone)]
pub(crate) struct Probe {
    inner: Arc<Inner>,
}

struct Inner {
    expected: usize,
    started: AtomicUsize,
    all_started: Notify,
    /// `None` if nobody wants to know.
    lateness: Option<Mutex<Vec<Duration>>>,
    settings: QueueSettings,
}

impl Probe {
    /// Says when this many jobs have started.
    pub(crate) fn counting(expected: usize) -> Self {
        Self::new(expected, None, QueueSettings::default())
    }

    /// Notes how late each job is, too.
    pub(crate) fn timing(expected: usize) -> Self {
        Self::new(expected, Some(Mutex::default()), QueueSettings::default())
    }

    /// This many jobs at once.
    pub(crate) fn concurrency(self, jobs: usize) -> Self {
        let settings = QueueSettings::new().concurrency(jobs);
        let lateness = self.inner.lateness.is_some().then(Mutex::default);
        Self::new(self.inner.expected, lateness, settings)
    }

    fn new(
        expected: usize,
        lateness: Option<Mutex<Vec<Duration>>>,
        settings: QueueSettings,
    ) -> Self {
        let (started, all_started) = (AtomicUsize::new(0), Notify::new());
        Self { inner: Arc::new(Inner { expected, started, all_started, lateness, settings }) }
    }

    /// Runs the jobs of `dq` until the last one expected has been settled.
    pub(crate) async fn run(&self, dq: &Dq) -> Result<Stopwatch> {
        let watch = Stopwatch::start();
        let runner = dq.runner().without_linked_handlers().handler(self.clone());
        runner.run_until(self.inner.all_started.notified()).await?;
        Ok(watch)
    }

    /// How late the jobs were.
    pub(crate) fn lateness(&self) -> Times {
        let lateness = self.inner.lateness.as_ref();
        let noted = lateness.map(|noted| noted.lock().unwrap_or_else(PoisonError::into_inner));
        Times::new(noted.map(|noted| noted.clone()).unwrap_or_default())
    }
}

impl DelayHandler for Probe {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        QUEUE
    }

    fn settings(&self) -> QueueSettings {
        self.inner.settings.clone()
    }

    async fn handle(&self, job: JobContext, _payload: String) -> HandlerResult {
        if let Some(lateness) = &self.inner.lateness {
            // The context counts whole milliseconds; here the fractions matter.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let due = Duration::from_millis(job.due().as_millis().unsigned_abs());
            let late = now.saturating_sub(due);
            lateness.lock().unwrap_or_else(PoisonError::into_inner).push(late);
        }
        if self.inner.started.fetch_add(1, Ordering::Relaxed) + 1 == self.inner.expected {
            self.inner.all_started.notify_one();
        }
        Ok(Outcome::Done)
    }
}
