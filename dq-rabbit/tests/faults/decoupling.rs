//! Failures beside the log do not stop the log, and a call that nobody waits for holds nothing.

use std::time::Duration;

use dq_core::Scheduled;
use dq_servers::shared_rabbitmq;

use crate::fixture::{
    LONG_LEASE, after, by_proxy, claim, claim_for, config, finding, job, open, poll, start_runner,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_in_the_log_is_scheduled_even_if_its_message_is_refused() {
    let vhost = "refusing";
    let backend = open(&config(vhost)).await;
    let mut runner = start_runner(&backend, "q").await;
    let refuse = r#"{"max-length":0,"overflow":"reject-publish"}"#;
    let policy = ["refuse", r"^dq\.v1\.l0\.", refuse, "--apply-to", "queues"];
    shared_rabbitmq().ctl(&[&["set_policy", "-p", vhost][..], &policy].concat());

    let new = after(2_500, job("q"));
    let scheduled = backend.schedule(vec![new.clone()]).await.unwrap();
    assert!(matches!(scheduled[..], [Scheduled::Created(_)]), "{scheduled:?}");
    runner.expect_each_once(&[new]).await;
    poll("the refusal is reported", async || finding(&*backend, "rabbitmq.messages-lost").await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_a_reply_holds_no_job() {
    let (proxy, mut config) = by_proxy(&config("frozen")).await;
    config.response_timeout = Duration::from_secs(5);
    let backend = open(&config).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    // The claim reaches the log when its caller has given up.
    proxy.pause();
    let error = claim_for(&*backend, "q", 1, LONG_LEASE).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    proxy.resume();
    let claim = async || claim(&*backend, "q", 1).await.ok()?.jobs.into_iter().next();
    assert_eq!(poll("the job is claimed", claim).await.job.losses, 0);
}
