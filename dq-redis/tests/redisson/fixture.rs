//! A server with a `redisson` backend, its key names, and Java clients' commands.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Due, JobKey, LeasedJob, NewJob, QueueName};
use dq_redis::{RedissonBackend, RedissonConfig};
use dq_servers::Redis;
use dq_testkit::fixture::done_settlements;

use crate::common;

pub(crate) struct Fixture {
    pub(crate) redis: Redis,
    pub(crate) backend: Arc<dyn Backend>,
}

impl Fixture {
    pub(crate) async fn with(options: &str) -> Self {
        let redis = Redis::start();
        let backend = open(&redis, options).await;
        Self { redis, backend }
    }

    /// Adds an entry as `offer` does in Redisson 3.21.1 and newer. Its id is `n` in eight bytes.
    /// Returns the member.
    pub(crate) fn java_offers(&self, n: u64, due: i64, payload: &[u8]) -> Vec<u8> {
        let mut member = vec![8];
        member.extend(n.to_be_bytes());
        member.extend((payload.len() as u64).to_le_bytes());
        member.extend(payload);
        let due = due.to_string();
        self.redis.command_bytes(&[b"ZADD", TIMEOUT.as_bytes(), due.as_bytes(), &member]);
        self.redis.command_bytes(&[b"RPUSH", ORDER.as_bytes(), &member]);
        member
    }

    pub(crate) async fn schedule(&self, jobs: Vec<NewJob>) {
        self.backend.schedule(jobs).await.unwrap();
    }

    pub(crate) fn len(&self, command: &str, key: &str) -> i64 {
        self.redis.command(&[command, key]).int()
    }

    pub(crate) async fn claim(&self, max: usize) -> Vec<LeasedJob> {
        common::claim(&*self.backend, max).await.jobs
    }

    pub(crate) async fn drain(&self, max: usize) -> Vec<LeasedJob> {
        let claimed = common::claim(&*self.backend, max).await;
        self.backend.settle(&done_settlements(&claimed)).await.unwrap();
        claimed.jobs
    }
}

pub(crate) async fn open(redis: &Redis, options: &str) -> Arc<dyn Backend> {
    let timeout =
        if options.is_empty() { "?response_timeout=60s" } else { "&response_timeout=60s" };
    let url = redis.url().replacen("redis://", "redisson://", 1) + options + timeout;
    backend_from_url(&url).unwrap().connect(&Environment::default()).await.unwrap()
}

pub(crate) async fn open_with(
    redis: &Redis,
    set: impl FnOnce(&mut RedissonConfig),
) -> Arc<dyn Backend> {
    let mut config = RedissonConfig::new(redis.url());
    set(&mut config);
    Arc::new(RedissonBackend::connect(&config, &Environment::default()).await.unwrap())
}

/// Redisson's sorted set of members (waiting entries) by due time.
pub(crate) const TIMEOUT: &str = "redisson_delay_queue_timeout:{q}";
/// Redisson's order list: the members in offer order.
pub(crate) const ORDER: &str = "redisson_delay_queue:{q}";
/// The destination list: payloads that Java's `take()` pops.
pub(crate) const DESTINATION: &str = "q";
/// Members scheduled by this backend, by member id.
pub(crate) const INDEX: &str = "dq:outside:{q}";

pub(crate) fn job(due: impl Into<Due>, payload: &str) -> NewJob {
    common::job().due(due).payload(Bytes::copy_from_slice(payload.as_bytes()))
}

pub(crate) fn job_in(queue: QueueName, due: impl Into<Due>, payload: &str) -> NewJob {
    let mut job = job(due, payload);
    job.queue = queue;
    job
}

pub(crate) fn keyed(due: impl Into<Due>, payload: &str, key: &str) -> NewJob {
    job(due, payload).key(JobKey::new(key).unwrap())
}
