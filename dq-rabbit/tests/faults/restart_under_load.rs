//! The broker restarts while many messages expire.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_servers::{RabbitMq, RabbitOptions};

use crate::fixture::{
    TestRunner, after, blocking, config_for, job, open, retry, stats, wait_until_done,
};

const JOBS: u64 = 3_000;

const CONCURRENCY: usize = 40;

/// Jobs that have ended and are not settled: a runner's `SETTLEMENT_BACKLOG`, and one call's
/// `BATCH`.
const UNSETTLED: usize = 1_024 + 100;

/// In milliseconds. All jobs are scheduled by then: a repeated call would schedule jobs again that
/// are done.
const FIRST_DUE: u64 = 10_000;

async fn run_with_restart(options: RabbitOptions, stop: fn(&RabbitMq)) {
    let server = Arc::new(options.start());
    let backend = open(&config_for(&server)).await;
    let settings = QueueSettings::new().concurrency(CONCURRENCY);
    let mut runner = TestRunner::start_with(&backend, &["q"], Duration::ZERO, settings).await;
    // Even jobs are due within five seconds from the stop, so their messages are expiring. Odd ones
    // are due eight seconds later, and their messages are in the ladder.
    let due = |n| FIRST_DUE + n * 5_000 / JOBS + 8_000 * (n % 2);
    let jobs: Vec<_> = (0..JOBS).map(|n| after(due(n), job("q"))).collect();
    for jobs in jobs.chunks(500) {
        retry(|| backend.schedule(jobs.to_vec())).await;
    }
    let (first, rest) = jobs.split_first().unwrap();
    let mut counts = runner.wait_for_all(std::slice::from_ref(first)).await;
    let server_too = Arc::clone(&server);
    blocking(move || {
        // A killed broker loses declarations that are not on its disk.
        server_too.sync_declarations();
        stop(&server_too);
        server_too.restart();
    })
    .await;
    for (id, count) in runner.wait_for_all(rest).await {
        *counts.entry(id).or_default() += count;
    }
    wait_until_done(&*backend, "q", JOBS).await;
    // After the last settlement, so that every second start counts.
    for id in runner.unexpected_starts() {
        *counts.entry(id).or_default() += 1;
    }
    let again = counts.values().filter(|count| **count > 1).count();
    println!("{again} of {JOBS} jobs ran again");
    assert_eq!(stats(&*backend, "q").await.stored(), 0);
    assert!(again <= CONCURRENCY + UNSETTLED, "{again} jobs ran again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_broker_under_load_loses_no_job() {
    run_with_restart(RabbitMq::options(), RabbitMq::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarting_a_broker_with_default_settings_loses_no_job() {
    // Its dead letters stall for three minutes, and jobs run from the log.
    run_with_restart(RabbitMq::options().stock(), RabbitMq::stop).await;
}
