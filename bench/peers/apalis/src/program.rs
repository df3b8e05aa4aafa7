//! Stores and runs jobs with the including program's `storage`; ../README.md lists the arguments
//! and the output.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use futures::stream;
use serde::{Deserialize, Serialize};

use crate::{BULK, close, storage};

const CONCURRENCY: usize = 16;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    id: u64,
    due: u64,
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// apalis has whole-second due times.
fn task(id: u64, first: u64, rate: u64) -> Task<Job> {
    let due = first + if rate > 0 { id * 1000 / rate } else { 0 };
    if first == 0 {
        return TaskBuilder::new(Job { id, due: now().as_millis() as u64 }).build();
    }
    // Rounded up so that no job runs early.
    TaskBuilder::new(Job { id, due }).run_at_timestamp(due.div_ceil(1000)).build()
}

async fn store(address: &str, count: u64, how: &str, first: u64, rate: u64) {
    let mut storage = storage(address).await;
    let started = Instant::now();
    if how == "bulk" {
        for begin in (0..count).step_by(BULK as usize) {
            let ids = begin..count.min(begin + BULK);
            let tasks = stream::iter(ids.map(|id| task(id, first, rate)));
            storage.push_all(tasks).await.unwrap();
        }
    } else {
        for id in 0..count {
            storage.push_task(task(id, first, rate)).await.unwrap();
        }
    }
    println!("{}", started.elapsed().as_secs_f64());
    close(storage).await;
}

async fn work(address: &str, sleep: Duration) {
    let run = move |job: Job| async move {
        let started = now().as_micros();
        // A tokio timer takes up to a millisecond even for a zero duration.
        if !sleep.is_zero() {
            tokio::time::sleep(sleep).await;
        }
        let mut output = std::io::stdout().lock();
        writeln!(output, "{} {} {started}", job.id, job.due).unwrap();
        output.flush().unwrap();
    };
    let name = format!("peer-{}", std::process::id());
    let worker = WorkerBuilder::new(name)
        .backend(storage(address).await)
        .concurrency(CONCURRENCY)
        .parallelize(tokio::spawn)
        .build(run);
    worker.run().await.unwrap();
}

pub async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |position: usize| arguments[position].parse().unwrap();
    if arguments[0] == "store" {
        store(&arguments[1], number(2), &arguments[3], number(4), number(5)).await;
    } else {
        work(&arguments[1], Duration::from_millis(number(2))).await;
    }
}
