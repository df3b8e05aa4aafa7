//! Servers, backends and jobs for the `redis-expiry` tests.

use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{
    Backend, ClaimParams, Due, JobId, LeasedJob, NewJob, QueueName, Receipt, Timestamp, Wakeups,
    Want,
};
use dq_redis::{Notifications, RedisExpiryBackend, RedisExpiryConfig};
use dq_servers::Redis;
use dq_testkit::fixture::retry;

pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

/// A due time that no test reaches and no other job has.
pub(crate) const FAR: Timestamp = Timestamp::from_millis(9_000_000_000_000);

pub(crate) fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

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

pub(crate) async fn native(server: &Redis) -> std::sync::Arc<dyn Backend> {
    let config = backend_from_url(&server.url()).unwrap();
    config.connect(&Environment::default()).await.unwrap()
}

pub(crate) fn job(queue: &QueueName, due: Due) -> NewJob {
    let id = JobId::from_bytes(Environment::default().entropy.bits().to_be_bytes());
    NewJob::new(id, queue.clone(), due, b"1".as_slice().into())
}

pub(crate) async fn schedule(backend: &dyn Backend, job: NewJob) -> Receipt {
    let answer = backend.schedule(vec![job]).await.unwrap().remove(0);
    assert!(answer.is_stored());
    answer.receipt()
}

pub(crate) async fn claim(backend: &dyn Backend) -> Vec<LeasedJob> {
    let lease_for = Duration::from_secs(60);
    let wants = [Want::new(queue(), 10, lease_for)];
    let params = ClaimParams::new(&wants, 10, "test");
    backend.claim(params).await.unwrap().jobs
}

pub(crate) fn expiry_key(prefix: &str, due: Timestamp, queue: &QueueName) -> String {
    format!("{{{prefix}}}:alarm:{}:{queue}", due.as_millis())
}

/// Waits until the event connections work. Probes repeatedly: on a busy machine, one probe's event
/// may be late.
pub(crate) async fn until_events_arrive(backend: &RedisExpiryBackend) {
    let wait = async {
        while backend.notifications() != Notifications::Working {
            drop(backend.check().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, wait).await.expect("events of expired keys arrive");
}

/// A backend's first listener, without the hints from new connections, which hide later ones.
/// `Backend::listen` may return before the connections exist: it gives up after a while, and after
/// a failed attempt.
pub(crate) async fn listen(backend: &RedisExpiryBackend, queue: &QueueName) -> Wakeups {
    // With the event connections up, the first listener opens only the message connection.
    until_events_arrive(backend).await;
    let mut wakeups = backend.listen(std::slice::from_ref(queue)).await.unwrap();
    assert_eq!(hint(&mut wakeups).await, Timestamp::EPOCH, "connected");
    wakeups
}

pub(crate) async fn hint(wakeups: &mut Wakeups) -> Timestamp {
    tokio::time::timeout(MAX_WAIT, wakeups.next()).await.expect("a hint arrives").due
}

/// Touches a key until it has expired, because the server alone finds expired keys late.
pub(crate) async fn until_expired(server: &Redis, key: &str) {
    let mut connection = server.connect();
    until("the key has expired", || connection.command(&["TOUCH", key]).int() == 0).await;
}

pub(crate) async fn expire(server: &Redis, key: &str) {
    assert!(server.command(&["SET", key, "", "PX", "1"]).is_ok());
    until_expired(server, key).await;
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, wait)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}
