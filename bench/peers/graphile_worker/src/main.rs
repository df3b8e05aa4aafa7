//! Stores and runs jobs with graphile_worker; ../README.md lists the arguments and the output.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, JobSpecBuilder, LocalQueueConfig, TaskHandler, WorkerContext,
    WorkerOptions, WorkerRecoveryConfig,
};
use serde::{Deserialize, Serialize};

const CONCURRENCY: usize = 16;
/// Jobs per call.
const BULK: i64 = 1_000;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    id: i64,
    due: i64,
}

#[derive(Debug, Clone)]
struct Sleep(Duration);

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "job";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let started = now().as_micros();
        let Sleep(sleep) = context.get_ext().unwrap();
        // A tokio timer takes up to a millisecond even for a zero duration.
        if !sleep.is_zero() {
            tokio::time::sleep(*sleep).await;
        }
        let mut output = std::io::stdout().lock();
        writeln!(output, "{} {} {started}", self.id, self.due).unwrap();
        output.flush().unwrap();
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The settings that its documentation names for throughput.
fn options(url: &str, sleep: Duration) -> WorkerOptions {
    WorkerOptions::default()
        .database_url(url)
        .concurrency(CONCURRENCY)
        // How often it looks for due jobs: by default every second.
        .poll_interval(Duration::from_millis(100))
        .complete_job_batch_delay(Duration::from_millis(5))
        .fail_job_batch_delay(Duration::from_millis(5))
        .local_queue(LocalQueueConfig::default().with_size(100))
        // Off by default.
        .worker_recovery(WorkerRecoveryConfig::default().enabled(true))
        .add_extension(Sleep(sleep))
        .define_job::<Job>()
}

fn job(id: i64, first: i64, rate: i64) -> (Job, JobSpec) {
    if first == 0 {
        return (Job { id, due: now().as_millis() as i64 }, JobSpec::default());
    }
    let due = first + if rate > 0 { id * 1000 / rate } else { 0 };
    let run_at = DateTime::from_timestamp_millis(due).unwrap();
    (Job { id, due }, JobSpecBuilder::new().run_at(run_at).build())
}

async fn store(url: &str, count: i64, how: &str, first: i64, rate: i64) {
    let worker = options(url, Duration::ZERO).init().await.unwrap();
    let utils = worker.create_utils();
    let started = Instant::now();
    if how == "bulk" {
        for begin in (0..count).step_by(BULK as usize) {
            let ids = begin..count.min(begin + BULK);
            let jobs: Vec<_> = ids.map(|id| job(id, first, rate)).collect();
            let jobs: Vec<_> = jobs.iter().map(|(job, spec)| (job.clone(), spec)).collect();
            utils.add_jobs(&jobs).await.unwrap();
        }
    } else {
        for id in 0..count {
            let (job, spec) = job(id, first, rate);
            utils.add_job(job, spec).await.unwrap();
        }
    }
    println!("{}", started.elapsed().as_secs_f64());
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |position: usize| arguments[position].parse().unwrap();
    if arguments[0] == "store" {
        store(&arguments[1], number(2), &arguments[3], number(4), number(5)).await;
    } else {
        let sleep = Duration::from_millis(number(2) as u64);
        options(&arguments[1], sleep).init().await.unwrap().run().await.unwrap();
    }
}
