//! Long runs, which measure. They run only by hand, one at a time:
//!
//! ```text
//! cargo test --release -p dq-rabbit --test endurance -- --ignored --nocapture NAME
//! ```
//!
//! `DQ_JOBS` sets the number of jobs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::config::{Environment, QueueSettings};
use dq_core::{
    Backend, Cancelled, Clock, DelayHandler, Dq, Due, Entropy, ErrorKind, HandlerResult,
    JobContext, JobId, JobRef, NewJob, Outcome, QueueCode, QueueName, Result, SystemClock,
    Timestamp,
};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;
use dq_testkit::fixture::blocking;
use tokio::sync::oneshot;

const BULK: usize = 1_000;

const TIMEOUT: Duration = Duration::from_secs(3_600);

fn number_of_jobs(default: usize) -> usize {
    std::env::var("DQ_JOBS").map_or(default, |jobs| jobs.parse().expect("a number"))
}

fn start_broker() -> RabbitMq {
    RabbitMq::options().set("vm_memory_high_watermark.absolute", "4GB").start()
}

async fn open(broker: &RabbitMq, log_size_mib: u32) -> Arc<dyn Backend> {
    let mut config = RabbitConfig::new(broker.url());
    config.response_timeout = Duration::from_secs(60);
    config.log_size_mib = log_size_mib;
    Arc::new(RabbitBackend::connect(&config, &Environment::default()).await.unwrap())
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn job(entropy: &Entropy, due: Due) -> NewJob {
    let payload = format!("\"{}\"", "x".repeat(1_022));
    NewJob::new(entropy.job_id(SystemClock.now()), queue(), due, payload.into())
}

type Starts = Arc<Mutex<Vec<(JobId, Duration)>>>;

struct Handler(Starts);

impl DelayHandler for Handler {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "q".to_owned()
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        assert_eq!(payload.len(), 1_022);
        self.0.lock().unwrap().push((ctx.id(), SystemClock.now().since(ctx.due())));
        Ok(Outcome::Done)
    }
}

async fn start_runner(backend: &Arc<dyn Backend>) -> (Starts, oneshot::Sender<()>) {
    let starts = Starts::default();
    let dq = Dq::builder().backend(Arc::clone(backend)).connect().await.unwrap();
    let runner = dq.runner().without_linked_handlers();
    let settings = QueueSettings::new().concurrency(256);
    let runner = runner.queue("q", settings).handler(Handler(Arc::clone(&starts))).build().unwrap();
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(runner.run_until(async {
        stopped.await.ok();
    }));
    (starts, stop)
}

async fn wait_for_starts(starts: &Starts, number: usize) {
    let began = Instant::now();
    while starts.lock().unwrap().len() < number {
        assert!(began.elapsed() < TIMEOUT, "{number} jobs do not start");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn retry<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(result) => return result,
            Err(error) if error.kind() == ErrorKind::Full => {}
            Err(error) => println!("{error}"),
        }
        assert!(began.elapsed() < TIMEOUT, "a call fails again and again");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for minutes"]
async fn jobs_whose_messages_were_purged() {
    const PER_SECOND: u64 = 200;
    const SECONDS: u64 = 60;
    let due_jobs = (PER_SECOND * SECONDS) as usize;
    let pending = number_of_jobs(126_000);
    let broker = Arc::new(start_broker());
    let backend = open(&broker, 1_024).await;
    let entropy = Entropy::from_os();
    // More than it takes to schedule all.
    let lead = Duration::from_secs(30 + pending as u64 / 400);
    let first_due = SystemClock.now() + lead;
    let began = Instant::now();
    for bulk in 0..pending / BULK {
        let jobs: Vec<_> = (0..BULK)
            .map(|index| {
                let index = bulk * BULK + index;
                // All over the log, in another order than they are due.
                let due = if index * due_jobs % pending < due_jobs {
                    let place = (index * due_jobs / pending * 7_919 % due_jobs) as u64;
                    first_due + Duration::from_micros(place * 1_000_000 / PER_SECOND)
                } else {
                    first_due + Duration::from_secs(86_400)
                };
                job(&entropy, Due::At(due))
            })
            .collect();
        let _ = retry(|| backend.schedule(jobs.clone())).await;
    }
    println!("{pending} jobs are scheduled in {:?}", began.elapsed());
    assert!(SystemClock.now() < first_due, "scheduling took too long");
    let (starts, _stop) = start_runner(&backend).await;
    SystemClock.sleep_until(first_due + Duration::from_secs(SECONDS / 6)).await;
    let purging = Arc::clone(&broker);
    let purged = blocking(move || {
        purging.eval(
            "[rabbit_amqqueue:purge(Q) || Q <- rabbit_amqqueue:list(), \
             amqqueue:get_type(Q) =/= rabbit_stream_queue], done.",
        )
    });
    println!("messages are purged: {}", purged.await);
    wait_for_starts(&starts, due_jobs).await;
    let mut late: Vec<_> = starts.lock().unwrap().iter().map(|(_, late)| *late).collect();
    assert_eq!(late.len(), due_jobs);
    late.sort_unstable();
    let [p50, p99, max] = [due_jobs / 2, due_jobs * 99 / 100, due_jobs - 1].map(|at| late[at]);
    let late = late.iter().filter(|late| **late > Duration::from_secs(1)).count();
    println!("{due_jobs} jobs: late by {p50:?} (p50), {p99:?} (p99), {max:?} (max)");
    println!("{late} are late by more than a second");
    backend.close().await.unwrap();
}

/// Every fourth job is cancelled. The log is a few times as large as what lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a quarter of an hour"]
async fn a_million_jobs() {
    const DELAY: Duration = Duration::from_secs(60);
    let number = number_of_jobs(1_000_000);
    let broker = start_broker();
    let (producer, consumer) = (open(&broker, 1_024).await, open(&broker, 1_024).await);
    let (starts, _stop) = start_runner(&consumer).await;
    let entropy = Entropy::from_os();
    let began = Instant::now();
    let mut cancelled = HashSet::new();
    let mut reported = Timestamp::EPOCH;
    for bulk in 1..=number / BULK {
        let jobs: Vec<_> = (0..BULK).map(|_| job(&entropy, Due::After(DELAY))).collect();
        let _ = retry(|| producer.schedule(jobs.clone())).await;
        let fourth: Vec<_> = jobs.iter().step_by(4).collect();
        let refs: Vec<_> = fourth.iter().map(|job| JobRef::new(queue(), job.id)).collect();
        for (job, answer) in fourth.iter().zip(retry(|| producer.cancel(&refs)).await) {
            // Otherwise it runs already, or an earlier reply was lost.
            if answer == Cancelled::Cancelled {
                cancelled.insert(job.id);
            }
        }
        let now = SystemClock.now();
        if now.since(reported) > Duration::from_secs(20) {
            reported = now;
            let started = starts.lock().unwrap().len();
            println!("{:?}: {} scheduled, {started} started", began.elapsed(), bulk * BULK);
        }
    }
    let scheduled = began.elapsed();
    println!("{number} jobs are scheduled in {scheduled:?}, {} cancelled", cancelled.len());
    let deadline = Instant::now() + TIMEOUT;
    let queues = [queue()];
    let stats = loop {
        let stats = retry(|| producer.stats(&queues)).await.remove(0);
        if stats.live() == 0 {
            break stats;
        }
        assert!(Instant::now() < deadline, "some jobs do not end: {stats:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("all have ended after {:?}", began.elapsed());
    let mut started = HashSet::new();
    for (id, _) in starts.lock().unwrap().iter() {
        assert!(started.insert(*id), "{id} ran twice");
        assert!(!cancelled.contains(id), "{id} was cancelled, and ran");
    }
    let totals = stats.totals.unwrap();
    assert_eq!(totals.created, number as u64);
    assert_eq!(totals.done, started.len() as u64);
    assert_eq!(totals.done + totals.cancelled, number as u64, "none is lost");
    assert!(totals.cancelled >= cancelled.len() as u64);
    for finding in producer.check().await {
        println!("{}: {}", finding.code, finding.cause);
    }
    consumer.close().await.unwrap();
    producer.close().await.unwrap();
}
