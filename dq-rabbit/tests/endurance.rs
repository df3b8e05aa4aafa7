//! A long run, which measures. Start it by hand:
//!
//! ```text
//! cargo test --release -p dq-rabbit --test endurance -- --ignored --nocapture
//! ```
//!
//! `DQ_JOBS` sets the number of jobs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::config::{Environment, QueueSettings};
use dq_core::{
    Backend, Cancelled, DelayHandler, Dq, HandlerResult, JobContext, JobId, Outcome, QueueCode,
};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;
use dq_testkit::fixture::{after, by_id, job, queue, retry};

const BULK: usize = 1_000;
const DELAY_MS: u64 = 60_000;
const TIMEOUT: Duration = Duration::from_secs(3_600);
const PAYLOAD_BYTES: usize = 1_022;

struct Handler(Arc<Mutex<Vec<JobId>>>);

impl DelayHandler for Handler {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "q".to_owned()
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        assert_eq!(payload.len(), PAYLOAD_BYTES);
        self.0.lock().unwrap().push(ctx.id());
        Ok(Outcome::Done)
    }
}

async fn open(broker: &RabbitMq) -> Arc<dyn Backend> {
    let mut config = RabbitConfig::new(broker.url());
    config.response_timeout = Duration::from_secs(60);
    Arc::new(RabbitBackend::connect(&config, &Environment::default()).await.unwrap())
}

/// Every fourth job is cancelled. The log grows to several times the size of the live jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a quarter of an hour"]
async fn a_million_jobs() {
    let number = std::env::var("DQ_JOBS").map_or(1_000_000, |jobs| jobs.parse().expect("a number"));
    let broker = RabbitMq::options().set("vm_memory_high_watermark.absolute", "4GB").start();
    let (producer, consumer) = (open(&broker).await, open(&broker).await);
    let starts = Arc::new(Mutex::new(Vec::new()));
    let dq = Dq::builder().backend(Arc::clone(&consumer)).connect().await.unwrap();
    let runner = dq.runner().without_linked_handlers();
    let runner = runner.queue("q", QueueSettings::new().concurrency(256));
    let runner = runner.handler(Handler(Arc::clone(&starts))).build().unwrap();
    let running = tokio::spawn(runner.run_until(std::future::pending::<()>()));

    let payload = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES));
    let began = Instant::now();
    let mut cancelled = HashSet::new();
    for bulk in 1..=number / BULK {
        let new = || after(DELAY_MS, job("q").payload(payload.clone()));
        let jobs: Vec<_> = (0..BULK).map(|_| new()).collect();
        let _ = retry(|| producer.schedule(jobs.clone())).await;
        let fourth: Vec<_> = jobs.iter().step_by(4).collect();
        let refs: Vec<_> = fourth.iter().map(|job| by_id(job)).collect();
        for (job, answer) in fourth.iter().zip(retry(|| producer.cancel(&refs)).await) {
            // Otherwise it runs already, or an earlier reply was lost.
            if answer == Cancelled::Cancelled {
                cancelled.insert(job.id);
            }
        }
        if bulk % 50 == 0 {
            let started = starts.lock().unwrap().len();
            println!("{:?}: {} scheduled, {started} started", began.elapsed(), bulk * BULK);
        }
    }
    println!("{number} jobs are scheduled in {:?}, {} cancelled", began.elapsed(), cancelled.len());
    let deadline = Instant::now() + TIMEOUT;
    let queues = [queue("q")];
    let counts = loop {
        let counts = retry(|| producer.stats(&queues)).await.remove(0);
        if counts.live() == 0 {
            break counts;
        }
        assert!(Instant::now() < deadline, "some jobs do not end: {counts:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("all have ended after {:?}", began.elapsed());
    let mut started = HashSet::new();
    for id in starts.lock().unwrap().iter() {
        assert!(started.insert(*id), "{id} ran twice");
        assert!(!cancelled.contains(id), "{id} was cancelled, and ran");
    }
    let totals = counts.totals.unwrap();
    assert_eq!(totals.created, number as u64);
    assert_eq!(totals.done, started.len() as u64);
    assert_eq!(totals.done + totals.cancelled, number as u64, "none is lost");
    assert!(totals.cancelled >= cancelled.len() as u64);
    for finding in producer.check().await {
        println!("{}: {}", finding.code, finding.cause);
    }
    running.abort();
    consumer.close().await.unwrap();
    producer.close().await.unwrap();
}
