//! `check` finds out whether keyspace notifications work, and otherwise reports a remedy.

use dq_core::{Backend, Finding};
use dq_servers::Redis;
use dq_testkit::fixture::{poll, wait_until};

use crate::expiry::fixture::{finding, open_and_configure, open_on, server, until_events_arrive};

const SETTING: &str = "notify-keyspace-events";

/// A probe waits a second for its event, which a busy machine may exceed.
async fn until_found(backend: &dyn Backend, code: &str) -> Finding {
    poll(code, async || finding(backend).await.filter(|found| found.code == code)).await
}

fn letters(server: &Redis) -> String {
    server.command(&["CONFIG", "GET", SETTING]).list()[1].text()
}

fn set_letters(server: &Redis, letters: &str) {
    assert!(server.command(&["CONFIG", "SET", SETTING, letters]).is_ok());
}

#[tokio::test]
async fn check_tells_whether_notifications_work() {
    let server = server();
    let backend = open_on(&server).await;
    until_events_arrive(&backend).await;

    set_letters(&server, "");
    let found = until_found(&backend, "redis-expiry.notifications-off").await;
    assert!(found.remedy.contains("notify-keyspace-events Ex"), "{found}");
    assert_eq!(letters(&server), "", "the setting is unchanged without `configure`");

    set_letters(&server, "Ex");
    assert!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int() > 0);
    until_events_arrive(&backend).await;
}

#[tokio::test]
async fn configure_adds_letters_also_after_a_restart_and_keeps_those_that_are_set() {
    let server = Redis::options().set(SETTING, "Kg$").start();
    let backend = open_and_configure(server.url()).await;
    let is_configured = async || {
        let mut letters: Vec<char> = letters(&server).chars().collect();
        letters.sort_unstable();
        letters == ['$', 'E', 'K', 'g', 'x']
    };
    wait_until("it is configured", is_configured).await;
    until_events_arrive(&backend).await;
    server.kill();
    server.restart();
    wait_until("it is configured again", is_configured).await;
}

#[tokio::test]
async fn a_server_that_cannot_be_configured_is_a_finding_and_not_an_error() {
    let server = Redis::options().set("rename-command CONFIG", "\"\"").start();
    let backend = open_and_configure(server.url()).await;
    until_found(&backend, "redis-expiry.config-refused").await;
}
