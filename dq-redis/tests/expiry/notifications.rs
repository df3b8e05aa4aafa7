//! A probe finds out whether keyspace notifications work. If not, `check` reports it with a remedy.

use std::time::Instant;

use dq_core::{Backend, Finding};
use dq_redis::{Notifications, RedisExpiryConfig};
use dq_servers::Redis;

use crate::fixture::{MAX_WAIT, open, open_on, server, until, until_events_arrive};

const SETTING: &str = "notify-keyspace-events";

/// Waits until `check` reports this code about notifications, or nothing. A probe waits a second
/// for its event, which a busy machine may exceed.
async fn finding(backend: &dyn Backend, code: Option<&str>) -> Option<Finding> {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let findings = backend.check().await;
        let found = findings.into_iter().find(|found| found.code.starts_with("redis-expiry."));
        if found.as_ref().map(|found| found.code) == code {
            return found;
        }
        assert!(Instant::now() < deadline, "expected {code:?}, found {found:?}");
    }
}

fn letters(server: &Redis) -> String {
    server.command(&["CONFIG", "GET", SETTING]).list()[1].text()
}

fn set_letters(server: &Redis, letters: &str) {
    assert!(server.command(&["CONFIG", "SET", SETTING, letters]).is_ok());
}

#[tokio::test]
async fn working_notifications_are_detected_at_the_start() {
    let server = server();
    let backend = open_on(&server).await;
    until("notifications are known to work", || backend.notifications() == Notifications::Working)
        .await;
    finding(&backend, None).await;
}

#[tokio::test]
async fn disabled_notifications_are_a_finding_with_a_remedy() {
    let server = Redis::start();
    let backend = open_on(&server).await;
    until("notifications are known to be off", || backend.notifications() == Notifications::Off)
        .await;
    let found = finding(&backend, Some("redis-expiry.notifications-off")).await.unwrap();
    assert!(found.remedy.contains("notify-keyspace-events Ex"), "{found}");
    assert_eq!(letters(&server), "", "the setting is unchanged without `configure`");

    set_letters(&server, "Ex");
    finding(&backend, None).await;
}

#[tokio::test]
async fn a_reconnect_causes_a_new_probe() {
    let server = server();
    let backend = open_on(&server).await;
    until_events_arrive(&backend).await;
    set_letters(&server, "");
    assert!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int() > 0);
    until("notifications are known to be off", || backend.notifications() == Notifications::Off)
        .await;
}

#[tokio::test]
async fn configure_adds_letters_and_keeps_those_that_are_set() {
    let server = Redis::options().set(SETTING, "Kg$").start();
    let mut config = RedisExpiryConfig::new(server.url());
    config.configure = true;
    let backend = open(&config).await;
    finding(&backend, None).await;
    let mut letters: Vec<char> = letters(&server).chars().collect();
    letters.sort_unstable();
    assert_eq!(letters, ['$', 'E', 'K', 'g', 'x']);
}

#[tokio::test]
async fn a_restarted_server_is_configured_again() {
    let server = Redis::start();
    let mut config = RedisExpiryConfig::new(server.url());
    config.configure = true;
    let backend = open(&config).await;
    until_events_arrive(&backend).await;
    server.kill();
    server.restart();
    until("configured", || letters(&server).contains('x')).await;
}

#[tokio::test]
async fn a_server_that_refuses_to_be_configured_is_a_finding_and_not_an_error() {
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-config"];
    let forbidden = Redis::start();
    assert!(forbidden.command(&user).is_ok());
    // Hosted servers often have no CONFIG.
    let without_config = Redis::options().set("rename-command CONFIG", "\"\"").start();
    for (server, login) in [(&forbidden, "app:secret@"), (&without_config, "")] {
        let mut config = RedisExpiryConfig::new(format!("redis://{login}{}/0", server.address()));
        config.configure = true;
        let backend = open(&config).await;
        finding(&backend, Some("redis-expiry.config-refused")).await;
        assert!(matches!(backend.notifications(), Notifications::Refused(_)));
    }

    // No finding once an administrator has turned notifications on.
    set_letters(&forbidden, "Ex");
    let mut config =
        RedisExpiryConfig::new(format!("redis://app:secret@{}/0", forbidden.address()));
    config.configure = true;
    finding(&open(&config).await, None).await;
}

#[tokio::test]
async fn a_user_without_the_right_to_subscribe_is_a_finding() {
    let server = server();
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", "&{dq}*"];
    assert!(server.command(&user).is_ok());
    let url = format!("redis://app:secret@{}/0", server.address());
    let backend = open(&RedisExpiryConfig::new(url)).await;
    let found = finding(&backend, Some("redis-expiry.notifications-unknown")).await.unwrap();
    assert!(found.remedy.contains("__keyevent@*__:expired"), "{found}");
}

#[tokio::test]
async fn probes_of_several_backends_do_not_disturb_each_other() {
    let server = server();
    let backends = [open_on(&server).await, open_on(&server).await, open_on(&server).await];
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let checks = futures_util::future::join_all(backends.iter().map(Backend::check)).await;
        let codes: Vec<_> = checks.iter().flatten().map(|found| found.code).collect();
        if !codes.iter().any(|code| code.starts_with("redis-expiry.")) {
            return;
        }
        // Checks all again together: alone, each finds nothing.
        assert!(Instant::now() < deadline, "{codes:?}");
    }
}
