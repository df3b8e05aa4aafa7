//! The broker goes away in the midst of all that expires.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_servers::{RabbitMq, RabbitOptions};

use crate::fixture::{after, blocking, config_for, job, open, retry, start_runner_with, stats};

const JOBS: u64 = 3_000;

async fn storm(options: RabbitOptions, end: fn(&RabbitMq)) {
    let server = Arc::new(options.start());
    let backend = open(&config_for(&server)).await;
    let settings = QueueSettings::new().concurrency(40);
    let mut runner = start_runner_with(&backend, "q", Duration::ZERO, settings).await;
    // Some for now, and some for when the broker is back, whose messages were on their way.
    let jobs: Vec<_> =
        (0..JOBS).map(|n| after(2_000 + n * 5_000 / JOBS + 8_000 * (n % 2), job("q"))).collect();
    for jobs in jobs.chunks(500) {
        retry(|| backend.schedule(jobs.to_vec())).await;
    }
    // In the midst of it, however long it took to get there.
    let (first, rest) = jobs.split_first().unwrap();
    let mut counts = runner.wait_for_all(std::slice::from_ref(first)).await;
    let server_too = Arc::clone(&server);
    blocking(move || {
        end(&server_too);
        server_too.restart();
    })
    .await;
    for (id, count) in runner.wait_for_all(rest).await {
        *counts.entry(id).or_default() += count;
    }
    retry(|| backend.stats(&[])).await;
    let again = counts.values().filter(|count| **count > 1).count();
    println!("{again} of {JOBS} ran again");
    crate::fixture::wait_until("all are done", async || {
        stats(&*backend, "q").await.totals.unwrap().done == JOBS
    })
    .await;
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.scheduled, counts.ready, counts.running, counts.dead), (0, 0, 0, 0));
    // Only what was running, or had just ended.
    assert!(again < 100, "{again} ran again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_in_a_storm_loses_nothing() {
    storm(RabbitMq::options(), RabbitMq::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_nobody_has_set_up_loses_nothing_when_it_is_restarted() {
    // Its dead letters stand still for three minutes; the log does not.
    storm(RabbitMq::options().stock(), RabbitMq::stop).await;
}
