//! Brokers that are not there yet, and that will not have us.

use std::time::Duration;

use dq_core::ErrorKind;
use dq_rabbit::TopologyMode;
use dq_servers::{RabbitMq, shared_rabbitmq};

use crate::fixture::{
    blocking, by_id, claim, config, config_for, connect, done_settlements, job, in_an_hour, open, retry, assert_error,
    stats,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_not_there_is_told_and_one_that_comes_is_taken() {
    let server = std::sync::Arc::new(RabbitMq::start());
    let mut config = config_for(&server);
    server.stop();
    config.response_timeout = Duration::from_millis(300);
    let error = assert_error(connect(&config).await, ErrorKind::Unavailable, &[&server.address()]);
    assert!(error.is_retryable());
    assert_eq!(error.failed_operation(), "connect");

    // One who is patient is there when the broker is.
    config.response_timeout = Duration::from_secs(150);
    let starting = tokio::spawn(blocking({
        let server = std::sync::Arc::clone(&server);
        move || server.restart()
    }));
    let backend = open(&config).await;
    starting.await.unwrap();
    backend.schedule(vec![job("q")]).await.unwrap();
    assert_eq!(claim(&*backend, "q", 1).await.unwrap().jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_let_in_is_told_why() {
    let server = shared_rabbitmq();
    server.ctl(&["add_user", "visitor", "hunter2"]);
    let url = |user: &str, vhost: &str| format!("amqp://{user}@{}/{vhost}", server.address());
    for (url, words) in [
        (url("visitor:wrong-hunter2", "%2f"), ["user and password", "ACCESS_REFUSED"]),
        (url("visitor:hunter2", "%2f"), ["visitor", "set_permissions"]),
        (url("dq:secret", "nowhere"), ["nowhere", "add_vhost"]),
    ] {
        let mut config = config_for(server);
        config.url = dq_core::config::Secret::new(url);
        let error = assert_error(connect(&config).await, ErrorKind::Config, &words);
        assert!(!error.is_retryable(), "nobody should wait for that: {error}");
        assert_eq!(error.failed_operation(), "connect", "{error}");
    }
}

/// Rights are looked at when something is used, and an exchange that is there already is not declared
/// anew by those who only look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_right_that_is_lacking_is_told_whatever_is_lacking_it() {
    let server = shared_rabbitmq();
    let owner = config("rights-of-one");
    let theirs = open(&owner).await;
    server.ctl(&["add_user", "guest-worker", "hunter2"]);
    let mut ours = owner.clone();
    let url = owner.url.expose().replace("dq:secret", "guest-worker:hunter2");
    ours.url = dq_core::config::Secret::new(url);
    ours.response_timeout = Duration::from_secs(3);
    let all = r"^dq\.v1\.";
    let grant = |configure: &str, write: &str, read: &str| {
        let rights = ["-p", "rights-of-one", "guest-worker", configure, write, read];
        server.ctl(&[&["set_permissions"][..], &rights].concat());
    };
    for (rights, lacking) in
        [(["", all, all], "configure"), ([all, "", all], "write"), ([all, all, ""], "read")]
    {
        grant(rights[0], rights[1], rights[2]);
        let words = [format!("right to {lacking}"), "set_permissions".to_owned()];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_error(connect(&ours).await, ErrorKind::Config, &words);
        // Who declares nothing needs not configure, and finds out about the rest by using it.
        ours.topology = TopologyMode::Passive;
        if lacking != "configure" {
            assert_error(connect(&ours).await, ErrorKind::Config, &["guest-worker", "set_permissions"]);
        }
        ours.topology = TopologyMode::Declare;
    }
    // Taken away under our hands, and given back.
    grant(all, all, all);
    let backend = retry(|| connect(&ours)).await;
    let kept = in_an_hour(job("q"));
    retry(|| backend.schedule(vec![kept.clone()])).await;
    grant(all, "", all);
    // The broker remembers what a channel was allowed.
    server.eval(
        "[rabbit_networking:close_connection(C, \"to ask anew\") || \
         C <- rabbit_networking:connections()]",
    );
    retry(|| theirs.stats(&[])).await;
    let error = backend.cancel(&[by_id(&kept)]).await.unwrap_err();
    crate::fixture::assert_helpful(&error, &[]);
    assert_eq!(stats(&*theirs, "q").await.scheduled, 1);
    grant(all, all, all);
    let new = job("q");
    crate::fixture::wait_until("we may write again", async || {
        backend.schedule(vec![new.clone()]).await.is_ok()
    })
    .await;
    let claimed = claim(&*theirs, "q", 9).await.unwrap();
    assert_eq!(claimed.jobs.len(), 1, "what was refused did not take effect after all");
    theirs.settle(&done_settlements(&claimed)).await.unwrap();
    assert_eq!(stats(&*theirs, "q").await.scheduled, 1);
}
