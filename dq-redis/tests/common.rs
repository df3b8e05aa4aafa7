//! Calls on a backend. They panic if a call fails.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Claimed, DeadKind, DeadReason, Due, Flow, JobKey, JobRef, JobState,
    JobView, LeasedJob, NewJob, Operation, QueueName, Settled, Settlement, Verdict,
};
use dq_servers::Redis;
use dq_testkit::fixture::{self, claim_for, dead_ids};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn queue() -> QueueName {
    fixture::queue("q")
}

pub(crate) fn job() -> NewJob {
    fixture::job("q")
}

pub(crate) fn keyed(key: &str) -> NewJob {
    fixture::keyed("q", key)
}

pub(crate) fn by_key(queue: &QueueName, key: &str) -> JobRef {
    JobRef::new(queue.clone(), JobKey::new(key).unwrap())
}

pub(crate) async fn claim(backend: &dyn Backend, limit: usize) -> Claimed {
    claim_for(backend, &["q"], limit, HOUR).await.unwrap()
}

pub(crate) async fn settle(backend: &dyn Backend, leased: &LeasedJob, verdict: Verdict) {
    let settlement = Settlement::new(leased.lease(), verdict);
    assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
}

pub(crate) fn dead() -> Verdict {
    Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"))
}

pub(crate) async fn purge(backend: &dyn Backend, queue: &QueueName) -> u64 {
    backend.operate(Operation::Purge { queue }).await.unwrap().affected
}

pub(crate) fn at_most(max: u32) -> Flow {
    Flow::UNLIMITED.max_running(max)
}

/// Returns whether that was a change.
pub(crate) async fn declare(backend: &dyn Backend, queue: &QueueName, flow: Flow) -> bool {
    backend.operate(Operation::DeclareFlow { queue, flow }).await.unwrap().affected == 1
}

/// Replays all dead jobs now. Returns how many were replayed.
pub(crate) async fn replay_all(backend: &dyn Backend, queue: &QueueName) -> u64 {
    let jobs = dead_ids(backend, queue).await;
    let replay = Operation::Replay { queue, jobs: &jobs, due: Due::NOW };
    backend.operate(replay).await.unwrap().affected
}

pub(crate) async fn list(
    backend: &dyn Backend,
    queue: &QueueName,
    state: JobState,
    page_length: usize,
) -> Vec<JobView> {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let params = BrowseParams::new(queue, state).limit(page_length).payloads(true);
        let page = backend.browse(params.after(after)).await.unwrap();
        assert!(page.jobs.len() <= page_length);
        jobs.extend(page.jobs);
        assert!(jobs.len() < 10_000, "the listing does not end");
        after = page.next;
        if after.is_none() {
            return jobs;
        }
    }
}

pub(crate) fn command_calls(redis: &Redis) -> HashMap<String, u64> {
    let stats = redis.command(&["INFO", "commandstats"]).text();
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(calls).collect()
}

/// A key that another program has replaced by a string.
pub(crate) struct ForeignKey<'a> {
    redis: &'a Redis,
    key: String,
    /// The original's name meanwhile.
    aside: Option<String>,
}

impl<'a> ForeignKey<'a> {
    pub(crate) fn replace(redis: &'a Redis, key: &str) -> Self {
        let aside = format!("aside:{key}");
        let existed = redis.command(&["EXISTS", key]).int() == 1;
        if existed {
            redis.command(&["RENAME", key, &aside]);
        }
        redis.command(&["SET", key, "something else"]);
        Self { redis, key: key.to_owned(), aside: existed.then_some(aside) }
    }

    pub(crate) fn restore(self) {
        self.redis.command(&["DEL", &self.key]);
        if let Some(aside) = &self.aside {
            self.redis.command(&["RENAME", aside, &self.key]);
        }
    }
}
