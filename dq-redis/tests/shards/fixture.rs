//! Servers, backends with different settings, and calls on queues with new names.
//!
//! A *process* in these tests is a separate backend: processes share only the server.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, Clock, Due, Entropy, ErrorKind, JobKey, JobState, LeasedJob, NewJob, QueueName,
    QueueStats, Result, Settled, Settlement, SystemClock, Verdict,
};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::{Redis, RedisCluster, shared_redis};
use dq_testkit::fixture::claim_for;

use crate::common::{HOUR, list};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    Server,
    Cluster,
}

impl Topology {
    pub(crate) fn url(self) -> String {
        match self {
            Self::Server => shared_redis().url(),
            Self::Cluster => {
                let nodes: Vec<String> = cluster().nodes().iter().map(Redis::address).collect();
                format!("redis+cluster://{}", nodes.join(","))
            }
        }
    }
}

pub(crate) fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(3))
}

pub(crate) fn queue() -> QueueName {
    QueueName::new(Entropy::from_os().job_id(SystemClock.now()).to_string()).unwrap()
}

pub(crate) async fn process(
    topology: Topology,
    queue: &QueueName,
    shards: Option<u16>,
) -> RedisBackend {
    process_at(topology.url(), queue, shards).await
}

pub(crate) async fn process_at(
    url: String,
    queue: &QueueName,
    shards: Option<u16>,
) -> RedisBackend {
    let mut config = RedisConfig::new(url);
    config.response_timeout = Duration::from_secs(60);
    config.shards.extend(shards.map(|shards| (queue.clone(), shards)));
    RedisBackend::connect(&config, &Environment::default()).await.unwrap()
}

pub(crate) fn job(queue: &QueueName, key: Option<&str>, due: impl Into<Due>) -> NewJob {
    let id = Entropy::from_os().job_id(SystemClock.now());
    let mut job = NewJob::new(id, queue.clone(), due, id.to_string().into());
    job.key = key.map(|key| JobKey::new(key).unwrap());
    job
}

pub(crate) fn keyed(queue: &QueueName, count: usize) -> Vec<NewJob> {
    (0..count).map(|n| job(queue, Some(&n.to_string()), Due::NOW)).collect()
}

pub(crate) async fn stats(process: &RedisBackend, queue: &QueueName) -> QueueStats {
    process.stats(std::slice::from_ref(queue)).await.unwrap().remove(0)
}

pub(crate) async fn claim(process: &RedisBackend, queue: &QueueName, max: usize) -> Vec<LeasedJob> {
    claim_for(process, &[queue.as_str()], max, HOUR).await.unwrap().jobs
}

pub(crate) async fn settle(process: &RedisBackend, taken: &[LeasedJob], verdict: &Verdict) {
    let settlement = |leased: &LeasedJob| Settlement::new(leased.lease(), verdict.clone());
    let settlements: Vec<_> = taken.iter().map(settlement).collect();
    let answers = process.settle(&settlements).await.unwrap();
    assert_eq!(answers, vec![Settled::Accepted; taken.len()]);
}

pub(crate) async fn live_by_key(
    process: &RedisBackend,
    queue: &QueueName,
) -> HashMap<JobKey, usize> {
    let mut live = HashMap::new();
    for state in [JobState::Scheduled, JobState::Ready, JobState::Running] {
        for view in list(process, queue, state, 200).await {
            *live.entry(view.job.key.expect("all jobs have keys")).or_default() += 1;
        }
    }
    live
}

/// The error must name the queue, both counts and the remedy.
#[track_caller]
pub(crate) fn assert_refused<T>(answer: Result<T>, queue: &QueueName, stored: u16, setting: u16) {
    let Err(error) = answer else { panic!("the call succeeded") };
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    let count = |shards| if shards == 1 { "1 shard ".into() } else { format!("{shards} shards") };
    for part in [queue.as_str(), &count(stored), count(setting).trim(), "`prefix`", "[[drain]]"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
