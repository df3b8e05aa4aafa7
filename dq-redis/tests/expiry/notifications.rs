//! A probe finds out whether keyspace notifications work. If not, `check` reports it with a remedy.

use std::time::Instant;

use dq_core::{Backend, Finding};
use dq_redis::Notifications;
use dq_servers::Redis;
use dq_testkit::fixture::{TIMEOUT, wait_until};

use crate::expiry::fixture::{open_and_configure, open_on, server, until_events_arrive};

const SETTING: &str = "notify-keyspace-events";

/// Waits until `check` reports this code about notifications, or nothing. A probe waits a second
/// for its event, which a busy machine may exceed.
async fn finding(backend: &dyn Backend, code: Option<&str>) -> Option<Finding> {
    let deadline = Instant::now() + TIMEOUT;
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
async fn notifications_are_probed_at_the_start_and_after_a_reconnect() {
    let server = server();
    let backend = open_on(&server).await;
    let are = async |state: Notifications| {
        wait_until("they are probed", async || backend.notifications() == state).await;
    };
    are(Notifications::Working).await;
    set_letters(&server, "");
    assert!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int() > 0);
    are(Notifications::Off).await;
    let found = finding(&backend, Some("redis-expiry.notifications-off")).await.unwrap();
    assert!(found.remedy.contains("notify-keyspace-events Ex"), "{found}");
    assert_eq!(letters(&server), "", "the setting is unchanged without `configure`");
    set_letters(&server, "Ex");
    finding(&backend, None).await;
}

#[tokio::test]
async fn configure_adds_letters_and_keeps_those_that_are_set() {
    let server = Redis::options().set(SETTING, "Kg$").start();
    let backend = open_and_configure(server.url()).await;
    finding(&backend, None).await;
    let mut letters: Vec<char> = letters(&server).chars().collect();
    letters.sort_unstable();
    assert_eq!(letters, ['$', 'E', 'K', 'g', 'x']);
}

#[tokio::test]
async fn a_restarted_server_is_configured_again() {
    let server = Redis::start();
    let backend = open_and_configure(server.url()).await;
    until_events_arrive(&backend).await;
    server.kill();
    server.restart();
    wait_until("it is configured", async || letters(&server).contains('x')).await;
}

/// Hosted servers often have no CONFIG. `tests/faults/rights.rs` has users without the right to it.
#[tokio::test]
async fn a_server_that_cannot_be_configured_is_a_finding_and_not_an_error() {
    let server = Redis::options().set("rename-command CONFIG", "\"\"").start();
    let backend = open_and_configure(server.url()).await;
    finding(&backend, Some("redis-expiry.config-refused")).await;
    assert!(matches!(backend.notifications(), Notifications::Refused(_)));
}

#[tokio::test]
async fn probes_of_several_backends_do_not_disturb_each_other() {
    let server = server();
    let backends = [open_on(&server).await, open_on(&server).await, open_on(&server).await];
    // Checks all again together: alone, each finds nothing.
    wait_until("no check has a finding", async || {
        let checks = futures_util::future::join_all(backends.iter().map(Backend::check)).await;
        !checks.iter().flatten().any(|found| found.code.starts_with("redis-expiry."))
    })
    .await;
}
