//! A broker with a memory alarm.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{ErrorKind, Scheduled};
use dq_servers::RabbitMq;

use crate::fixture::{
    after, assert_error, blocking, config_for, in_an_hour, job, queue, retry, start_runner, stats,
    wait_until,
};

/// Sets the share of memory above which the broker has an alarm: a tiny one causes the alarm.
async fn set_watermark(server: &Arc<RabbitMq>, share: &'static str) {
    let server = Arc::clone(server);
    blocking(move || server.ctl(&["set_vm_memory_high_watermark", share])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_during_a_memory_alarm_and_work_after_it() {
    let server = Arc::new(RabbitMq::start());
    let mut config = config_for(&server);
    config.response_timeout = Duration::from_secs(2);
    let backend = retry(|| crate::fixture::connect(&config)).await;
    let mut runner = start_runner(&backend, "q").await;
    let other = retry(|| crate::fixture::connect(&config)).await;
    let before: Vec<_> = (0..20).map(|n| after(2_000 + 100 * n, job("q"))).collect();
    retry(|| backend.schedule(before.clone())).await;

    set_watermark(&server, "0.0000001").await;
    // The broker reports the alarm only to connections that publish, and may accept the first
    // message.
    let in_doubt = in_an_hour(job("full"));
    let full = async || {
        let result = backend.schedule(vec![in_doubt.clone()]).await;
        result.is_err_and(|error| error.kind() == ErrorKind::Full)
    };
    wait_until("the alarm is reported", full).await;
    let refused_job = in_an_hour(job("full"));
    let words = ["accepts no messages", "vm_memory_high_watermark"];
    let result = tokio::time::timeout(
        Duration::from_secs(30),
        backend.schedule(vec![refused_job.clone(), in_an_hour(job("full"))]),
    );
    let error = assert_error(result.await.expect("in time"), ErrorKind::Full, &words);
    assert!(error.is_retryable());
    assert_error(backend.stats(&[queue("q")]).await, ErrorKind::Full, &words);

    // A process that serves others can be closed: it ends, with or without an error, since the broker
    // accepts nothing from it.
    let other_is_full = async || {
        let result = other.schedule(vec![in_doubt.clone()]).await;
        result.is_err_and(|error| error.kind() == ErrorKind::Full)
    };
    wait_until("the alarm is reported to the other process", other_is_full).await;
    let closed = tokio::time::timeout(Duration::from_secs(180), other.close()).await;
    drop(closed.expect("it closes during the alarm"));

    set_watermark(&server, "0.9").await;
    let again = retry(|| backend.schedule(vec![refused_job.clone()])).await;
    assert!(
        matches!(again[..], [Scheduled::Created(_)]),
        "the refused job was not stored: {again:?}"
    );
    let again = retry(|| backend.schedule(vec![in_doubt.clone()])).await;
    assert_eq!(again[0].id(), in_doubt.id);
    assert_eq!(stats(&*backend, "full").await.scheduled, 2);
    runner.expect_each_once(&before).await;
}
