//! A runner that has nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq::backend::{
    Backend, BrowseParams, Capabilities, ClaimParams, Claimed, OperateReport, Operation, Renewal,
    Renewed, Reschedule, Settlement, Wakeups,
};
use dq::config::{Environment, QueueSettings};
use dq::sqlite::{SqliteBackend, SqliteConfig};
use dq::{
    Cancelled, DelayHandler, Dq, Entropy, Finding, HandlerResult, JobContext, JobRef, JobView,
    MemoryBackend, NewJob, Outcome, Page, QueueCode, QueueName, QueueStats, Rescheduled, Scheduled,
    Settled, SystemClock, Timestamp,
};

use crate::measure::{Stopwatch, millis, runtime};
use crate::table::Figure;
use crate::{Plan, Result, progress};

pub(crate) const QUEUES: usize = 100;

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    // Longer than a minute, which is how often the rarest of the runner's loops comes round.
    let window = plan.size(Duration::from_secs(61), Duration::from_secs(1));
    let environment =
        Environment { clock: Arc::new(SystemClock), entropy: Arc::new(Entropy::from_os()) };
    let runtime = runtime(2);
    let memory = Arc::new(MemoryBackend::new(Arc::clone(&environment.clock)));
    let config = SqliteConfig::new(plan.dir.join("idle.db"));
    let sqlite = Arc::new(runtime.block_on(SqliteBackend::open(&config, &environment))?);
    let mut figures = Vec::new();
    for backend in [memory as Arc<dyn Backend>, sqlite] {
        figures.extend(runtime.block_on(watch(backend, window))?);
    }
    Ok(figures)
}

async fn watch(backend: Arc<dyn Backend>, window: Duration) -> Result<Vec<Figure>> {
    let name = backend.name();
    let calls = Arc::new(AtomicUsize::new(0));
    let counting = Arc::new(Counting { backend, calls: Arc::clone(&calls) });
    let dq = Dq::builder().backend(counting).connect().await?;
    let mut runner = dq.runner().without_linked_handlers();
    for number in 0..QUEUES {
        runner = runner.handler(Nothing { code: format!("IDLE_{number}") });
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(runner.run_until(async move {
        // A sender that is dropped means the end, too.
        let _ = stopped.await;
    }));
    // Starting is not idling.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = calls.load(Ordering::Relaxed);
    let watch = Stopwatch::start();
    tokio::time::sleep(window).await;
    let (wall, cpu) = (watch.wall(), watch.cpu());
    let made = calls.load(Ordering::Relaxed) - before;
    drop(stop);
    running.await??;
    dq.close().await?;
    let per_second = made as f64 / wall.as_secs_f64();
    let cpu = millis(cpu) / wall.as_secs_f64();
    progress(format_args!("{name}: {made} calls in {:.0} s", wall.as_secs_f64()));
    Ok(vec![
        Figure::new(format!("{name}, {QUEUES} queues: store calls"), per_second, "/s").at_most(1.0),
        Figure::new(format!("{name}, {QUEUES} queues: CPU"), cpu, "ms/s"),
    ])
}

/// A handler of a queue without jobs.
pub(crate) struct Nothing {
    pub(crate) code: String,
}

impl DelayHandler for Nothing {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.code.clone()
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::default()
    }

    async fn handle(&self, _job: JobContext, _payload: String) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

/// Counts the calls of a backend.
#[derive(Debug)]
struct Counting {
    backend: Arc<dyn Backend>,
    calls: Arc<AtomicUsize>,
}

impl Counting {
    fn count(&self) -> &dyn Backend {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &*self.backend
    }
}

#[dq::async_trait]
impl Backend for Counting {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn now(&self) -> dq::Result<Timestamp> {
        self.count().now().await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> dq::Result<Vec<Scheduled>> {
        self.count().schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> dq::Result<Vec<Cancelled>> {
        self.count().cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> dq::Result<Vec<Rescheduled>> {
        self.count().reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> dq::Result<Wakeups> {
        self.count().listen(queues).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> dq::Result<Claimed> {
        self.count().claim(params).await
    }

    fn claim_ahead(&self) -> Duration {
        self.backend.claim_ahead()
    }

    async fn settle(&self, settlements: &[Settlement]) -> dq::Result<Vec<Settled>> {
        self.count().settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> dq::Result<Vec<Renewed>> {
        self.count().renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> dq::Result<Vec<QueueStats>> {
        self.count().stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> dq::Result<Page> {
        self.count().browse(params).await
    }

    async fn get(&self, job: &JobRef) -> dq::Result<Option<JobView>> {
        self.count().get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> dq::Result<OperateReport> {
        self.count().operate(operation).await
    }

    async fn check(&self) -> Vec<Finding> {
        self.count().check().await
    }

    async fn close(&self) -> dq::Result<()> {
        self.count().close().await
    }
}
