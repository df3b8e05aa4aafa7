//! Sentinel with a failover, TLS, sockets, and users and passwords with any characters.

use std::time::Duration;

use dq_core::ErrorKind;
use dq_servers::{Redis, Sentinel};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::faults::fixture::{
    TIMEOUT, TestRunner, assert_error, claim, connect, job, open, retry, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_continues_on_the_new_primary_after_a_fail_over() {
    let primary = Redis::options().password("secret1").start();
    let replica = Redis::options().password("secret1").replica_of(&primary).start();
    let sentinel = Sentinel::start(&primary, "jobs");
    let url = format!("redis+sentinel://:secret1@{}/jobs/0", sentinel.address());
    let url = format!("{url}?response_timeout=1s");
    let backend = retry(|| connect(&url)).await;
    let mut serving = TestRunner::start(&backend, &["Q".to_owned()]).await;
    let before = job("Q");
    retry(|| backend.schedule(vec![before.clone()])).await;
    serving.wait_for_all(&[before]).await;
    // Due after the failover, and replicated before.
    let over = job("Q").due(dq_core::Due::After(Duration::from_secs(3)));
    retry(|| backend.schedule(vec![over.clone()])).await;
    assert!(primary.command(&["WAIT", "1", "10000"]).int() >= 1);

    primary.kill();
    wait_until("the replica is the primary", async || sentinel.primary_port() == replica.port())
        .await;
    let after = job("Q");
    retry(|| backend.schedule(vec![after.clone()])).await;
    // The failover may take longer than the delay.
    serving.wait_for_all(&[after, over]).await;

    let wrong = format!("redis+sentinel://:secret1@{}/nobody", sentinel.address());
    assert_error(connect(&wrong).await, ErrorKind::Unavailable, &["name of the primary"]);
}

#[tokio::test]
async fn tls_with_a_private_authority() {
    let [redis, other] = [Redis::options().tls().start(), Redis::options().tls().start()];
    let with = |ca: &std::path::Path| format!("{}?ca={}", redis.url(), ca.display());
    let backend = open(&with(&redis.ca())).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    let mut wakeups = backend.listen(&[crate::faults::fixture::queue("q")], "test").await.unwrap();
    tokio::time::timeout(TIMEOUT, wakeups.next()).await.expect("the listener uses TLS too");
    assert_eq!(claim(&*backend, &["q"], 9).await.unwrap().jobs.len(), 1);

    for url in [redis.url(), with(&other.ca())] {
        assert_error(connect(&url).await, ErrorKind::Config, &["certificate", "`ca`"]);
    }
    let no_tls = format!("redis://{}/0", redis.address());
    assert_error(connect(&no_tls).await, ErrorKind::Unavailable, &[]);
    assert_error(connect(&format!("{no_tls}?ca=x.pem")).await, ErrorKind::Config, &["`ca`", "TLS"]);
    let missing = with(std::path::Path::new("/nowhere/ca.pem"));
    assert_error(connect(&missing).await, ErrorKind::Config, &["/nowhere/ca.pem"]);
}

#[tokio::test]
async fn users_and_passwords_with_any_characters_by_port_and_by_socket() {
    let redis = Redis::start();
    let (user, password) = ("shop:eu/1", "secret@ss:w/rd?#%25&=+ü§");
    let acl = ["ACL", "SETUSER", user, "on", &format!(">{password}"), "~*", "&*", "+@all"];
    assert!(redis.command(&acl).is_ok());
    assert!(redis.command(&["ACL", "SETUSER", "default", "off"]).is_ok());
    let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let who = format!("{}:{}@", encode(user), encode(password));
    for (name, url) in [
        ("port", format!("redis://{who}{}/0", redis.address())),
        ("socket", format!("redis+unix://{who}{}", redis.socket().display())),
    ] {
        let backend = open(&url).await;
        backend.schedule(vec![job(name)]).await.unwrap();
        assert_eq!(claim(&*backend, &[name], 9).await.unwrap().jobs.len(), 1);
        let wrong = url.replace(&who, &format!("{}:wrong-secret@", encode(user)));
        assert_error(connect(&wrong).await, ErrorKind::Config, &["password"]);
        assert_error(connect(&url.replace(&who, "")).await, ErrorKind::Config, &["NOAUTH"]);
    }
}
