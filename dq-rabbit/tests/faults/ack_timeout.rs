//! Handlers that take longer than the broker's acknowledgement timeout.

use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_servers::RabbitMq;

use crate::fixture::{TestRunner, after, config_for, job, open, wait_until_done};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_take_longer_than_the_acknowledgement_timeout() {
    // Both in milliseconds: the timeout, and how often the broker checks it.
    let server = RabbitMq::options()
        .set("consumer_timeout", "1500")
        .advanced("channel_tick_interval", "300")
        .start();
    let backend = open(&config_for(&server)).await;
    let settings = QueueSettings::new().concurrency(2).lease(Duration::from_secs(60));
    let mut runner =
        TestRunner::start_with(&backend, &["q"], Duration::from_secs(5), settings).await;
    let jobs: Vec<_> = (0..2).map(|_| after(5_000, job("q"))).collect();
    // These wait for a slot until the broker closes the channel.
    let waiting: Vec<_> = (0..2).map(|_| after(5_300, job("q"))).collect();
    backend.schedule(jobs.iter().chain(&waiting).cloned().collect()).await.unwrap();
    runner.expect_each_once(&jobs).await;
    runner.expect_each_once(&waiting).await;
    wait_until_done(&*backend, "q", 4).await;
    assert_eq!(runner.unexpected_starts(), [], "no job runs twice");
    let log = server.log();
    assert!(log.contains("has timed out"), "the timeout has closed a channel");
}
