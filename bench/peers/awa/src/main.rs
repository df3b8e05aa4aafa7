//! Stores and runs jobs with awa; ../README.md lists the arguments and the output.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use awa::model::migrations;
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage,
    QueueStorageConfig,
};
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const CONCURRENCY: u32 = 16;
/// Jobs per call.
const BULK: i64 = 1_000;
const QUEUE: &str = "default";

#[derive(Debug, Serialize, Deserialize, JobArgs)]
struct Job {
    id: i64,
    due: i64,
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The engine of new deployments, which a new schema does not use by itself.
fn storage() -> QueueStorage {
    QueueStorage::new(QueueStorageConfig::default()).unwrap()
}

async fn connect(url: &str) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(CONCURRENCY).connect(url).await.unwrap();
    migrations::run(&pool).await.unwrap();
    // Not beside a worker: the two would lock the tables in different orders.
    if QueueStorage::active_schema(&pool).await.unwrap().is_none() {
        storage().install(&pool).await.unwrap();
    }
    pool
}

fn job(id: i64, first: i64, rate: i64) -> (Job, InsertOpts) {
    if first == 0 {
        return (Job { id, due: now().as_millis() as i64 }, InsertOpts::default());
    }
    let due = first + if rate > 0 { id * 1000 / rate } else { 0 };
    let run_at = DateTime::from_timestamp_millis(due);
    (Job { id, due }, InsertOpts { run_at, ..InsertOpts::default() })
}

async fn store(url: &str, count: i64, how: &str, first: i64, rate: i64) {
    let pool = connect(url).await;
    let storage = storage();
    let started = Instant::now();
    if how == "bulk" {
        for begin in (0..count).step_by(BULK as usize) {
            let ids = begin..count.min(begin + BULK);
            let jobs = ids.map(|id| job(id, first, rate)).map(|(job, opts)| InsertParams {
                kind: Job::kind().to_owned(),
                args: job.to_args().unwrap(),
                opts,
            });
            storage.enqueue_params_copy(&pool, &jobs.collect::<Vec<_>>()).await.unwrap();
        }
    } else {
        for id in 0..count {
            let (job, opts) = job(id, first, rate);
            awa::insert_with(&pool, &job, opts).await.unwrap();
        }
    }
    println!("{}", started.elapsed().as_secs_f64());
}

async fn work(url: &str, sleep: Duration) {
    let config = QueueConfig {
        max_workers: CONCURRENCY,
        // By default 200 ms.
        poll_interval: Duration::from_millis(100),
        ..QueueConfig::default()
    };
    let client = Client::builder(connect(url).await)
        .queue(QUEUE, config)
        // How often due jobs are moved to the queue: by default every 250 ms.
        .promote_interval(Duration::from_millis(100))
        .register::<Job, _, _>(move |job: Job, _| async move {
            let started = now().as_micros();
            // A tokio timer takes up to a millisecond even for a zero duration.
            if !sleep.is_zero() {
                tokio::time::sleep(sleep).await;
            }
            let mut output = std::io::stdout().lock();
            writeln!(output, "{} {} {started}", job.id, job.due).unwrap();
            output.flush().unwrap();
            Ok(JobResult::Completed)
        })
        .build()
        .unwrap();
    client.start().await.unwrap();
    std::future::pending().await
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |position: usize| arguments[position].parse().unwrap();
    if arguments[0] == "store" {
        store(&arguments[1], number(2), &arguments[3], number(4), number(5)).await;
    } else {
        work(&arguments[1], Duration::from_millis(number(2) as u64)).await;
    }
}
