//! Servers, backends and hints.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Backend, Finding, NewJob, Receipt, Timestamp, Wakeups};
use dq_redis::{RedisExpiryBackend, RedisExpiryConfig};
use dq_servers::Redis;
use dq_testkit::fixture::{TIMEOUT, retry, wait_until};

use crate::common::queue;

pub(crate) const FAR: Timestamp = Timestamp::from_millis(9_000_000_000_000);

pub(crate) fn server() -> Redis {
    Redis::options().set("notify-keyspace-events", "Ex").start()
}

pub(crate) async fn open(config: &RedisExpiryConfig) -> RedisExpiryBackend {
    let mut config = config.clone();
    config.response_timeout = Duration::from_secs(60);
    let environment = Environment::default();
    retry(|| RedisExpiryBackend::connect(&config, &environment)).await
}

pub(crate) async fn open_on(server: &Redis) -> RedisExpiryBackend {
    open(&RedisExpiryConfig::new(server.url())).await
}

pub(crate) async fn open_and_configure(url: String) -> RedisExpiryBackend {
    let mut config = RedisExpiryConfig::new(url);
    config.configure = true;
    open(&config).await
}

pub(crate) async fn schedule(backend: &dyn Backend, job: NewJob) -> Receipt {
    let answer = backend.schedule(vec![job]).await.unwrap().remove(0);
    assert!(answer.is_stored());
    answer.receipt()
}

pub(crate) fn expiry_key(prefix: &str, due: Timestamp, queue: &str) -> String {
    format!("{{{prefix}}}:alarm:{}:{queue}", due.as_millis())
}

/// Skips the hints from new connections, which hide later ones. `Backend::listen` may return before
/// the connections exist.
pub(crate) async fn listen(backend: &RedisExpiryBackend) -> Wakeups {
    // With the event connections up, the first listener opens only the message connection.
    until_events_arrive(backend).await;
    let mut wakeups = backend.listen(&[queue()], "test").await.unwrap();
    assert_eq!(hint(&mut wakeups).await, Timestamp::EPOCH, "connected");
    wakeups
}

/// `None` if notifications work.
pub(crate) async fn finding(backend: &dyn Backend) -> Option<Finding> {
    let findings = backend.check().await;
    findings.into_iter().find(|found| found.code.starts_with("redis-expiry."))
}

/// On a busy machine, one probe's event may be late.
pub(crate) async fn until_events_arrive(backend: &dyn Backend) {
    wait_until("events of expired keys arrive", async || finding(backend).await.is_none()).await;
}

pub(crate) async fn hint(wakeups: &mut Wakeups) -> Timestamp {
    tokio::time::timeout(TIMEOUT, wakeups.next()).await.expect("a hint arrives").due
}

/// The server alone finds expired keys late.
pub(crate) async fn until_expired(server: &Redis, key: &str) {
    wait_until("the key has expired", async || server.command(&["TOUCH", key]).int() == 0).await;
}

pub(crate) async fn expire(server: &Redis, key: &str) {
    assert!(server.command(&["SET", key, "", "PX", "1"]).is_ok());
    until_expired(server, key).await;
}
