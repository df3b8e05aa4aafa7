//! Kills the server with SIGKILL under load and restarts it from its append-only file.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Result, async_trait};
use dq_servers::{Redis, RedisCluster};
use dq_testkit::behaviour::{self, BackendUnderTest, StoreClock, StoreUnderTest};
use dq_testkit::fixture::{CrashWorkload, blocking};
use tokio::sync::Mutex;

use crate::faults::fixture::{connect, retry, wait_until};

/// Stores with their own servers. Reopening a store kills and restarts its server.
#[derive(Debug)]
struct Killed {
    scheme: &'static str,
}

#[derive(Debug)]
struct OnDisk {
    redis: Arc<Redis>,
    url: String,
    opened: Mutex<bool>,
}

#[async_trait]
impl BackendUnderTest for Killed {
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>> {
        let redis = tokio::task::spawn_blocking(|| Arc::new(Redis::options().aof().start()));
        let redis = redis.await.expect("a server");
        let url = url_of(&redis, self.scheme);
        Ok(Box::new(OnDisk { redis, url, opened: Mutex::new(false) }))
    }
}

#[async_trait]
impl StoreUnderTest for OnDisk {
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        let mut opened = self.opened.lock().await;
        if *opened {
            let redis = Arc::clone(&self.redis);
            let crash = move || {
                redis.kill();
                redis.restart();
            };
            tokio::task::spawn_blocking(crash).await.expect("it starts again");
        }
        *opened = true;
        backend_from_url(&self.url)?.connect(environment).await
    }

    fn clock(&self) -> StoreClock {
        StoreClock::Real
    }
}

fn url_of(redis: &Redis, scheme: &str) -> String {
    redis.url().replacen("redis", scheme, 1)
}

/// Runs the behaviour suite's crash trials, which reopen a store after their calls.
async fn acknowledged_calls_survive(killed: Killed) {
    let trials = behaviour::trials_for(&killed).await.unwrap();
    let is_crash = |name: &str| name.starts_with("crash/") || name.contains("_a_crash");
    let crashes = trials.iter().filter(|trial| is_crash(trial.name()));
    let runs = crashes.map(|trial| async {
        let failure = trial.run(&killed).await.err();
        failure.map(|failure| format!("{}: {failure:?}", trial.name()))
    });
    let runs: Vec<_> = runs.collect();
    assert!(runs.len() >= 9, "only {} trials: have their names changed?", runs.len());
    let mut failed = Vec::new();
    for run in runs {
        failed.extend(run.await);
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_calls_survive_a_killed_server() {
    acknowledged_calls_survive(Killed { scheme: "redis" }).await;
    acknowledged_calls_survive(Killed { scheme: "redisson" }).await;
}

/// Runs clients and checks the trace of their calls. Kills and restarts the server after each
/// pause, in milliseconds.
async fn check_over_kills(url: &str, kill: impl Fn() + Clone + Send + 'static, pauses: &[u64]) {
    let workload = CrashWorkload {
        lease_for: Duration::from_millis(400),
        snooze: Duration::from_millis(200),
        min_done: 50,
        min_calls: 500,
    };
    let store = retry(|| connect(url)).await;
    let pauses: Vec<_> = pauses.iter().map(|pause| Duration::from_millis(*pause)).collect();
    workload.run(store, &pauses, async || blocking(kill.clone()).await).await;
}

async fn work_on_one_server(scheme: &str, options: &str) {
    let redis = Arc::new(Redis::options().aof().start());
    let url = url_of(&redis, scheme) + options;
    let crash = move || {
        redis.kill();
        redis.restart();
    };
    check_over_kills(&url, crash, &[150, 230, 90, 310, 170]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_the_server_is_killed() {
    work_on_one_server("redis", "").await;
    work_on_one_server("redisson", "").await;
    work_on_one_server("redisson", "?java_visibility=exact").await;
}

async fn work_on_a_cluster(scheme: &str, key: &'static str) {
    let cluster = Arc::new(RedisCluster::start(3));
    for node in cluster.nodes() {
        for setting in [["appendonly", "yes"], ["appendfsync", "always"]] {
            assert!(node.command(&["CONFIG", "SET", setting[0], setting[1]]).is_ok());
        }
        // The setting must survive the restart.
        assert!(node.command(&["CONFIG", "REWRITE"]).is_ok());
    }
    // Enabling the append-only file starts a rewrite. A server killed before the rewrite ends loses
    // the commands appended since.
    let is_complete = |node: &Redis| {
        let info = node.command(&["INFO", "persistence"]).text();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    };
    wait_until("the files are complete", async || cluster.nodes().iter().all(is_complete)).await;
    let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
    // Calls to a killed node end soon, so that the clients make others meanwhile.
    let url = format!("{scheme}+cluster://{}?response_timeout=2s", nodes.join(","));
    let crash = move || {
        let owner = cluster.owner(key);
        owner.kill();
        owner.restart();
        cluster.wait_until_healthy();
    };
    check_over_kills(&url, crash, &[300, 400, 200]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_a_node_is_killed() {
    // All native keys are on one node: the prefix is their hash tag. In Redisson's keys it is the
    // queue's name, and `a` is a workload queue.
    work_on_a_cluster("redis", "{dq}:queues").await;
    work_on_a_cluster("redisson", "dq:job:{a}").await;
}
