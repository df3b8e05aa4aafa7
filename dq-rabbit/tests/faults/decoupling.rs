//! Failures beside the log do not stop the log, and a call that nobody waits for holds nothing.

use std::time::Duration;

use dq_core::Scheduled;
use dq_core::config::Secret;
use dq_servers::shared_rabbitmq;
use dq_testkit::faults::TcpProxy;

use crate::fixture::{
    LONG_LEASE, after, blocking, claim, claim_for, close_connections, config, job, open, poll,
    start_runner, stats, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_right_to_configure_stops_no_job() {
    let vhost = "revoked";
    let mut config = config(vhost);
    let server = shared_rabbitmq();
    server.ctl(&["add_user", "tenant", "secret"]);
    let all = r"^dq\.v1\.";
    let grant = |configure| {
        server.ctl(&["set_permissions", "-p", vhost, "tenant", configure, all, all]);
    };
    grant(all);
    config.url = Secret::new(config.url.expose().replace("dq:secret", "tenant:secret"));
    let backend = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;
    runner
        .expect_each_once(&{
            let jobs = vec![after(1_500, job("q"))];
            backend.schedule(jobs.clone()).await.unwrap();
            jobs
        })
        .await;
    grant("^$");
    // Each connection caches the permissions of its user.
    blocking(move || close_connections(vhost)).await;
    let new = after(1_500, job("q"));
    wait_until("jobs are scheduled again", async || {
        backend.schedule(vec![new.clone()]).await.is_ok()
    })
    .await;
    runner.expect_each_once(&[new]).await;
    // Everything exists, so a new process needs no right to configure.
    assert_eq!(stats(&*open(&config).await, "q").await.totals.unwrap().done, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_in_the_log_is_scheduled_even_if_its_message_is_refused() {
    let vhost = "refusing";
    let backend = open(&config(vhost)).await;
    let mut runner = start_runner(&backend, "q").await;
    let refuse = r#"{"max-length":0,"overflow":"reject-publish"}"#;
    let pattern = r"^dq\.v1\.l0\.";
    shared_rabbitmq().ctl(&[
        "set_policy",
        "-p",
        vhost,
        "refuse",
        pattern,
        refuse,
        "--apply-to",
        "queues",
    ]);
    let new = after(2_500, job("q"));
    let scheduled = backend.schedule(vec![new.clone()]).await.unwrap();
    assert!(matches!(scheduled[..], [Scheduled::Created(_)]), "{scheduled:?}");
    runner.expect_each_once(&[new]).await;
    wait_until("the refusal is reported", async || {
        backend.check().await.iter().any(|finding| finding.code == "rabbitmq.messages-lost")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_a_reply_holds_no_job() {
    let mut config = config("frozen");
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    config.url = Secret::new(proxy.url(config.url.expose()));
    config.response_timeout = Duration::from_secs(5);
    let backend = open(&config).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    // The claim reaches the log when its caller has given up.
    proxy.pause();
    let error = claim_for(&*backend, "q", 1, LONG_LEASE).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    proxy.resume();
    let claimed = poll("the job is claimed", async || {
        let claimed = claim(&*backend, "q", 1).await.ok()?;
        claimed.jobs.into_iter().next()
    })
    .await;
    assert_eq!(claimed.job.losses, 0);
}
