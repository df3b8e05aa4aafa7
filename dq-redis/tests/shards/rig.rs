//! What the tests stand on: servers, processes with settings of their own, jobs.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, ClaimParams, Clock, Due, Entropy, Headers, JobId, JobKey, JobRef,
    JobState, JobView, LeasedJob, NewJob, OnConflict, QueueName, Settled, Settlement, SystemClock,
    Verdict, Want,
};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::{Redis, RedisCluster, shared_redis};

pub(crate) const LATER: Duration = Duration::from_secs(3_600);

/// Where a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Server,
    Cluster,
}

impl Place {
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

/// One cluster for all tests. It ends with the process.
pub(crate) fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(3))
}

/// A queue that no other test uses.
pub(crate) fn queue() -> QueueName {
    QueueName::new(Entropy::from_os().job_id(SystemClock.now()).to_string()).unwrap()
}

/// A process with these shards for the queue; `None`: it does not care.
pub(crate) async fn process(place: Place, queue: &QueueName, shards: Option<u16>) -> RedisBackend {
    let mut config = RedisConfig::new(place.url());
    config.shards.extend(shards.map(|shards| (queue.clone(), shards)));
    RedisBackend::connect(&config, &Environment::default()).await.unwrap()
}

pub(crate) fn job(queue: &QueueName, key: Option<&str>, due: impl Into<Due>) -> NewJob {
    let id = Entropy::from_os().job_id(SystemClock.now());
    NewJob {
        id,
        queue: queue.clone(),
        key: key.map(self::key),
        on_conflict: OnConflict::Keep,
        due: due.into(),
        payload: id.to_string().into(),
        headers: Headers::new(),
        max_attempts: None,
    }
}

pub(crate) fn key(key: &str) -> JobKey {
    JobKey::new(key).unwrap()
}

pub(crate) fn by_key(queue: &QueueName, key: &str) -> JobRef {
    JobRef::new(queue.clone(), self::key(key))
}

/// Leases at most so many due jobs.
pub(crate) async fn claim(process: &RedisBackend, queue: &QueueName, max: usize) -> Vec<LeasedJob> {
    let wants = [Want { queue: queue.clone(), max, lease_for: LATER }];
    let params = ClaimParams { wants: &wants, limit: max, worker: "test" };
    process.claim(params).await.unwrap().jobs
}

/// Ends leases, all of which must be held.
pub(crate) async fn settle(process: &RedisBackend, taken: &[LeasedJob], verdict: &Verdict) {
    let settlement =
        |leased: &LeasedJob| Settlement { lease: leased.lease(), verdict: verdict.clone() };
    let settlements: Vec<_> = taken.iter().map(settlement).collect();
    let answers = process.settle(&settlements).await.unwrap();
    assert_eq!(answers, vec![Settled::Accepted; taken.len()]);
}

pub(crate) fn ids(taken: &[LeasedJob]) -> Vec<JobId> {
    taken.iter().map(|leased| leased.job.id).collect()
}

/// All jobs in one state, in the order listed.
pub(crate) async fn list(
    process: &RedisBackend,
    queue: &QueueName,
    state: JobState,
    limit: usize,
) -> Vec<JobView> {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let page = process.browse(BrowseParams { queue, state, after, limit }).await.unwrap();
        assert!(page.jobs.len() <= limit);
        jobs.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            return jobs;
        }
    }
}

/// How many live jobs each key has.
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
