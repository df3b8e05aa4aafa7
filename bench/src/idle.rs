//! Store calls and CPU time of a runner with empty queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq::backend::{Backend, Layer};
use dq::config::{Environment, QueueSettings};
use dq::sqlite::{SqliteBackend, SqliteConfig};
use dq::{
    DelayHandler, Dq, Entropy, HandlerResult, JobContext, MemoryBackend, Outcome, QueueCode,
    SystemClock,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::measure::{Stopwatch, millis, runtime};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

pub(crate) const QUEUES: usize = 100;

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    // Covers several announcements, one every 15 s. The ten-minute store check runs before the
    // window.
    let window = plan.full_or_quick(Duration::from_secs(61), Duration::from_secs(1));
    let environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
    let runtime = runtime(2);
    let memory = Arc::new(MemoryBackend::new(Arc::clone(&environment.clock)));
    let config = SqliteConfig::new(plan.dir.join("idle.db"));
    let sqlite = Arc::new(runtime.block_on(SqliteBackend::open(&config, &environment))?);
    let mut figures = Vec::new();
    for backend in [memory as Arc<dyn Backend>, sqlite] {
        figures.extend(runtime.block_on(measure(backend, window))?);
    }
    Ok(figures)
}

async fn measure(backend: Arc<dyn Backend>, window: Duration) -> Result<Vec<Figure>> {
    let name = backend.name();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::new(CallCounter { backend, calls: Arc::clone(&calls) });
    let dq = Dq::builder().backend(counter).connect().await?;
    let runner = IdleRunner::start(&Handle::current(), &dq);
    // Skips the startup calls.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = calls.load(Ordering::Relaxed);
    let watch = Stopwatch::start();
    tokio::time::sleep(window).await;
    let (wall, cpu) = (watch.wall(), watch.cpu());
    let made = calls.load(Ordering::Relaxed) - before;
    runner.stop().await?;
    dq.close().await?;
    let per_second = made as f64 / wall.as_secs_f64();
    let cpu = millis(cpu) / wall.as_secs_f64();
    progress(format_args!("{name}: {made} calls in {:.0} s", wall.as_secs_f64()));
    Ok(vec![
        Figure::new(format!("{name}, {QUEUES} queues: store calls"), per_second, "/s").at_most(1.1),
        Figure::new(format!("{name}, {QUEUES} queues: CPU"), cpu, "ms/s"),
    ])
}

struct Nothing {
    code: String,
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

#[derive(Debug)]
struct CallCounter {
    backend: Arc<dyn Backend>,
    calls: Arc<AtomicUsize>,
}

#[dq::async_trait]
impl Layer for CallCounter {
    fn inner(&self) -> &dyn Backend {
        &*self.backend
    }

    async fn before(&self, _method: &'static str) -> dq::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

pub(crate) struct IdleRunner {
    stop: oneshot::Sender<()>,
    task: JoinHandle<dq::Result<()>>,
}

impl IdleRunner {
    pub(crate) fn start(runtime: &Handle, dq: &Dq) -> Self {
        let mut runner = dq.runner().without_linked_handlers();
        for number in 0..QUEUES {
            runner = runner.handler(Nothing { code: format!("IDLE_{number}") });
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let task = runtime.spawn(runner.run_until(async move {
            // Resolves once `stop` drops the sender.
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    pub(crate) async fn stop(self) -> Result<()> {
        drop(self.stop);
        Ok(self.task.await??)
    }
}
