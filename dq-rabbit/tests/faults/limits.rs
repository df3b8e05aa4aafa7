//! Limits of a virtual host.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Backend, Clock, Error, ErrorKind, NewJob, SystemClock};
use dq_rabbit::{LadderKind, RabbitConfig};
use dq_servers::shared_rabbitmq;

use crate::fixture::{
    after, assert_error, assert_helpful, blocking, by_id, close_connections, config, connect,
    finding, in_an_hour, job, open, poll, retry, start_runner, wait_until,
};

const WORDS: [&str; 2] = ["is reached", "set_vhost_limits"];

async fn limit(vhost: &'static str, name: &str, limit: u32) {
    let set = format!(
        r#"rabbit_vhost_limit:parse_set(<<"{vhost}">>, <<"{{\"{name}\": {limit}}}">>, <<"dq">>)"#
    );
    blocking(move || shared_rabbitmq().eval(&set)).await;
}

async fn lift(vhost: &'static str) {
    let clear = format!(r#"rabbit_vhost_limit:clear(<<"{vhost}">>, <<"dq">>)"#);
    blocking(move || shared_rabbitmq().eval(&clear)).await;
}

/// Few queues, and streams that are closed after 2 MiB.
fn small(vhost: &str) -> RabbitConfig {
    let mut config = config(vhost);
    config.ladder = LadderKind::None;
    config.log_size_mib = 16;
    config
}

async fn write(backend: &Arc<dyn Backend>) -> Result<(), Error> {
    let large = in_an_hour(job("large")).payload(vec![7; 200_000]);
    backend.schedule(vec![large.clone()]).await?;
    backend.cancel(&[by_id(&large)]).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_opened_once_the_queue_limit_is_lifted() {
    const VHOST: &str = "limit-open";
    let config = small(VHOST);
    limit(VHOST, "max-queues", 1).await;
    let error = assert_error(connect(&config).await, ErrorKind::Full, &WORDS);
    assert!(error.is_retryable(), "{error}");
    lift(VHOST).await;
    open(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_stream_is_declared_once_the_queue_limit_is_lifted() {
    const VHOST: &str = "limit-next";
    let config = small(VHOST);
    let backend = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;
    let first = after(1_500, job("q"));
    retry(|| backend.schedule(vec![first.clone()])).await;
    runner.expect_each_once(&[first]).await;

    limit(VHOST, "max-queues", 1).await;
    let full = async || write(&backend).await.err();
    let error = poll("the log needs its next stream", full).await;
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_helpful(&error, &WORDS);
    let stuck = finding(&*backend, "rabbitmq.log-stuck").await.unwrap();
    assert!(stuck.remedy.contains("set_vhost_limits"));

    lift(VHOST).await;
    let late = after(0, job("q"));
    retry(|| backend.schedule(vec![late.clone()])).await;
    runner.expect_each_once(&[late]).await;
    wait_until("check finds nothing", async || {
        finding(&*backend, "rabbitmq.log-stuck").await.is_none()
    })
    .await;
}

/// Closes all connections while the broker accepts only so many new ones.
async fn runs_once_lifted(vhost: &'static str, connections: u32) {
    let mut config = config(vhost);
    config.response_timeout = Duration::from_secs(5);
    let backend = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;
    let scheduling = open(&config).await;
    let before = after(1_500, job("q"));
    retry(|| scheduling.schedule(vec![before.clone()])).await;
    runner.expect_each_once(&[before]).await;
    limit(vhost, "max-connections", connections).await;
    let jobs: Vec<NewJob> = (0..20).map(|n| after(4_000 + 50 * n, job("q"))).collect();
    let due = SystemClock.now() + Duration::from_secs(6);
    retry(|| scheduling.schedule(jobs.clone())).await;
    // The broker counts connections late: it may accept all of them, and they are closed again.
    let refused = async || {
        blocking(move || close_connections(vhost)).await;
        let (one, other) = tokio::join!(backend.stats(&[]), scheduling.stats(&[]));
        one.and(other).err().filter(|error| error.to_string().contains(WORDS[0]))
    };
    let error = poll("a connection is refused", refused).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_helpful(&error, &WORDS);
    wait_until("the jobs are due", async || SystemClock.now() > due).await;
    lift(vhost).await;
    runner.expect_each_once(&jobs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_once_a_connection_limit_is_lifted() {
    for (vhost, connections) in [("connections-1", 1), ("connections-3", 3)] {
        runs_once_lifted(vhost, connections).await;
    }
}
