//! Runners of two processes share a limited queue. A test waits for each start for a shorter
//! time than a sweep's interval or a lease, so a wake-up or the time in a claim's answer causes it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dq_core::{
    Backend, DelayHandler, Dq, Flow, HandlerResult, JobContext, JobId, Operation, Outcome,
    QueueCode,
};
use dq_servers::Redis;
use dq_testkit::fixture::{job, queue};
use tokio::sync::mpsc;

use crate::common::at_most;
use crate::limits::open;

const JOBS: usize = 40;
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);

struct Counter {
    running: Arc<AtomicUsize>,
    report: mpsc::UnboundedSender<(JobId, usize)>,
}

impl DelayHandler for Counter {
    type Payload = serde_json::Value;

    fn code(&self) -> impl QueueCode {
        "q"
    }

    async fn handle(&self, ctx: JobContext, _: serde_json::Value) -> HandlerResult {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.report.send((ctx.id(), running)).ok();
        Ok(Outcome::Done)
    }
}

#[tokio::test]
async fn runners_of_two_processes_run_all_jobs_within_the_limits() {
    let rate = |text: &str| Flow::UNLIMITED.rate(text.parse().unwrap());
    let group = Flow::UNLIMITED.group_max_running(1);
    for flow in [
        at_most(1),
        at_most(3),
        rate("200/1s burst 1"),
        rate("1000/1s").max_running(1),
        group,
        group.max_running(1),
        rate("200/1s burst 1").group_max_running(2),
    ] {
        run_all(flow).await;
    }
}

async fn run_all(flow: Flow) {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queue = queue("q");
    // The runners declare that they have no limit.
    let operation = Operation::OverrideFlow { queue: &queue, flow: Some(flow) };
    backend.operate(operation).await.unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let (report, mut reports) = mpsc::unbounded_channel();
    for _ in 0..2 {
        let backend: Arc<dyn Backend> = Arc::new(open(&redis).await);
        let dq = Dq::builder().backend(backend).connect().await.unwrap();
        let handler = Counter { running: Arc::clone(&running), report: report.clone() };
        let runner = dq.runner().without_linked_handlers().handler(handler);
        let runner = runner.sweep(SWEEP_INTERVAL).build().unwrap();
        tokio::spawn(runner.run_until(std::future::pending::<()>()));
    }
    let begin = Instant::now();
    for _ in 0..JOBS {
        let new = job("q").payload("null").group("all");
        backend.schedule(vec![new]).await.unwrap();
    }
    let mut ran = HashSet::new();
    while ran.len() < JOBS {
        let report = tokio::time::timeout(WAIT, reports.recv()).await;
        let (id, running) =
            report.unwrap_or_else(|_| panic!("{flow}: {} of {JOBS}", ran.len())).unwrap();
        assert!(ran.insert(id), "{flow}: {id} runs again");
        let max = flow.max_running.or(flow.group_max_running);
        let max = max.map_or(usize::MAX, |max| max as usize);
        assert!(running <= max, "{flow}: {running} run");
    }
    if let Some(rate) = flow.rate {
        let spaced = u32::try_from(JOBS).unwrap().saturating_sub(rate.max_burst());
        let (took, least) = (begin.elapsed(), rate.interval() * spaced);
        assert!(took >= least, "{flow}: {JOBS} jobs start in {took:?}");
    }
}
