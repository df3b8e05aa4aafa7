//! The broker restarts while many messages expire.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_servers::{RabbitMq, RabbitOptions};

use crate::fixture::{after, blocking, config_for, job, open, retry, start_runner_with, stats};

/// Number of jobs.
const JOBS: u64 = 3_000;

/// Number of jobs that run at a time.
const CONCURRENCY: usize = 40;

/// Maximum number of jobs that have ended and that the store has not settled: `SETTLEMENT_BACKLOG` of
/// a runner, and `BATCH` of one call.
const UNSETTLED: usize = 1_024 + 100;

/// When the first job is due, in milliseconds. By then, all are scheduled: else a call whose reply is
/// late would be repeated when its jobs are done, and schedule them as new ones.
const FIRST_DUE: u64 = 10_000;

/// Stops the broker by `stop` while jobs run, restarts it, and checks that all jobs run.
async fn run_with_restart(options: RabbitOptions, stop: fn(&RabbitMq)) {
    let server = Arc::new(options.start());
    let backend = open(&config_for(&server)).await;
    let settings = QueueSettings::new().concurrency(CONCURRENCY);
    let mut runner = start_runner_with(&backend, "q", Duration::ZERO, settings).await;
    // The broker stops when the first job runs. The even jobs are due in the five seconds from then
    // on, so their messages are expiring when it stops. The odd ones are due eight seconds later:
    // their messages are still in the ladder.
    let due = |n| FIRST_DUE + n * 5_000 / JOBS + 8_000 * (n % 2);
    let jobs: Vec<_> = (0..JOBS).map(|n| after(due(n), job("q"))).collect();
    for jobs in jobs.chunks(500) {
        retry(|| backend.schedule(jobs.to_vec())).await;
    }
    // Restart once the first job runs.
    let (first, rest) = jobs.split_first().unwrap();
    let mut counts = runner.wait_for_all(std::slice::from_ref(first)).await;
    let server_too = Arc::clone(&server);
    blocking(move || {
        // A broker that is killed loses declarations that are not on its disk.
        server_too.sync_declarations();
        stop(&server_too);
        server_too.restart();
    })
    .await;
    for (id, count) in runner.wait_for_all(rest).await {
        *counts.entry(id).or_default() += count;
    }
    crate::fixture::wait_until("all are done", async || {
        stats(&*backend, "q").await.totals.unwrap().done == JOBS
    })
    .await;
    // After the last settlement, so that every second start is counted.
    for id in runner.unexpected_starts() {
        *counts.entry(id).or_default() += 1;
    }
    let again = counts.values().filter(|count| **count > 1).count();
    println!("{again} of {JOBS} jobs ran again");
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.scheduled, counts.ready, counts.running, counts.dead), (0, 0, 0, 0));
    // Only jobs that were running or had ended and were not settled when the broker stopped.
    assert!(again <= CONCURRENCY + UNSETTLED, "{again} jobs ran again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_broker_under_load_loses_no_job() {
    run_with_restart(RabbitMq::options(), RabbitMq::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarting_a_broker_with_default_settings_loses_no_job() {
    // Its dead letters stall for three minutes; jobs run from the log.
    run_with_restart(RabbitMq::options().stock(), RabbitMq::stop).await;
}
