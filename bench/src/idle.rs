//! What a runner with empty queues does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq::Dq;
use dq::backend::{Backend, Layer};

use crate::measure::{Stopwatch, in_task, millis};
use crate::plan::{Plan, Result};
use crate::probe::Probe;
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::queues;

const QUEUES: usize = 100;

/// Covers the runner's startup, in which RabbitMQ's backend declares each queue.
const STARTUP: Duration = Duration::from_secs(5);

/// Runs something beside an idle runner, after its startup.
pub(crate) async fn beside_idle_runner<T>(
    dq: &Dq,
    probe: Probe,
    startup: Duration,
    run: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut result = None;
    let until_run = async {
        tokio::time::sleep(startup).await;
        result = Some(run.await);
    };
    probe.runner(dq).run_until(until_run).await?;
    result.ok_or("the runner has ended early")?
}

/// The store calls and the CPU time of a runner that waits.
pub(crate) fn calls(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    // Covers several announcements, one every 15 s. The ten-minute store check runs before the
    // window.
    let window = plan.full_or_quick(Duration::from_secs(61), Duration::from_secs(1));
    let url = store.fresh()?;
    let (calls, cpu) = in_task(async move {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = CallCounter { backend: open(&url).await?, calls: Arc::clone(&calls) };
        let dq = Dq::builder().backend(Arc::new(counter)).connect().await?;
        let probe = Probe::counting(usize::MAX).serving(queues(QUEUES));
        let observe = async {
            let (before, watch) = (calls.load(Ordering::Relaxed), Stopwatch::start());
            tokio::time::sleep(window).await;
            Ok((calls.load(Ordering::Relaxed) - before, watch.cpu()))
        };
        let observed = beside_idle_runner(&dq, probe, STARTUP, observe).await?;
        dq.close().await?;
        Ok(observed)
    })?;
    let name = format!("{}, {QUEUES} queues", store.name);
    let seconds = window.as_secs_f64();
    Ok(vec![
        Figure::new(format!("{name}: store calls"), calls as f64 / seconds, "/s").at_most(1.1),
        Figure::new(format!("{name}: CPU"), millis(cpu) / seconds, "ms/s"),
    ])
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
