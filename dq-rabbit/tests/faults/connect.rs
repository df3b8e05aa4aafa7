//! Brokers that are unreachable, or refuse the connection.

use std::sync::Arc;
use std::time::Duration;

use dq_core::ErrorKind;
use dq_core::config::Secret;
use dq_rabbit::TopologyMode;
use dq_servers::{RabbitMq, shared_rabbitmq};

use crate::fixture::{
    assert_error, assert_helpful, blocking, by_id, claim, close_connections, config, config_for,
    connect, done_settlements, in_an_hour, job, open, retry, stats, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_fails_without_a_broker_and_waits_for_one_within_the_timeout() {
    let server = Arc::new(RabbitMq::start());
    let mut config = config_for(&server);
    server.stop();
    config.response_timeout = Duration::from_millis(300);
    let error = assert_error(connect(&config).await, ErrorKind::Unavailable, &[&server.address()]);
    assert!(error.is_retryable());
    assert_eq!(error.failed_operation(), "connect");

    // With a long timeout, connecting waits for the broker.
    config.response_timeout = Duration::from_secs(150);
    let starting = tokio::spawn(blocking({
        let server = Arc::clone(&server);
        move || server.restart()
    }));
    let backend = open(&config).await;
    starting.await.unwrap();
    backend.schedule(vec![job("q")]).await.unwrap();
    assert_eq!(claim(&*backend, "q", 1).await.unwrap().jobs.len(), 1);
}

/// The broker checks permissions when an object is used, not when it is declared passively.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_each_missing_permission() {
    let server = shared_rabbitmq();
    let vhost = "permissions-of-one";
    let owner = config(vhost);
    let owner_backend = open(&owner).await;
    server.ctl(&["add_user", "guest-worker", "hunter2"]);
    let mut limited = owner.clone();
    let url = owner.url.expose().replace("dq:secret", "guest-worker:hunter2");
    limited.url = Secret::new(url);
    let all = r"^dq\.v1\.";
    let grant = |configure: &str, write: &str, read: &str| {
        let permissions = ["-p", vhost, "guest-worker", configure, write, read];
        server.ctl(&[&["set_permissions"][..], &permissions].concat());
    };
    for (write, read, missing) in
        [("", all, "permission to write"), (all, "", "permission to read")]
    {
        grant(all, write, read);
        let words = [missing, "set_permissions"];
        assert_error(connect(&limited).await, ErrorKind::Config, &words);
        // The other permissions are needed to use the log.
        limited.topology = TopologyMode::Passive;
        let words = ["guest-worker", "set_permissions"];
        assert_error(connect(&limited).await, ErrorKind::Config, &words);
        limited.topology = TopologyMode::Declare;
    }
    // Only missing objects have to be declared.
    grant("", all, all);
    retry(|| connect(&limited)).await.close().await.unwrap();
    let mut elsewhere = limited.clone();
    elsewhere.prefix = "elsewhere".to_owned();
    let words = ["permission to configure", "set_permissions"];
    assert_error(connect(&elsewhere).await, ErrorKind::Config, &words);
    grant(all, all, all);
    let backend = retry(|| connect(&limited)).await;
    let kept = in_an_hour(job("q"));
    retry(|| backend.schedule(vec![kept.clone()])).await;
    grant(all, "", all);
    // The broker caches permissions for each channel.
    blocking(move || close_connections(vhost)).await;
    retry(|| owner_backend.stats(&[])).await;
    let error = backend.cancel(&[by_id(&kept)]).await.unwrap_err();
    assert_helpful(&error, &[]);
    assert_eq!(stats(&*owner_backend, "q").await.scheduled, 1);
    grant(all, all, all);
    let new = job("q");
    wait_until("writing is permitted again", async || {
        backend.schedule(vec![new.clone()]).await.is_ok()
    })
    .await;
    let claimed = claim(&*owner_backend, "q", 9).await.unwrap();
    assert_eq!(claimed.jobs.len(), 1, "refused calls have not taken effect");
    owner_backend.settle(&done_settlements(&claimed)).await.unwrap();
    assert_eq!(stats(&*owner_backend, "q").await.scheduled, 1);
}
