//! Kills the server with SIGKILL and restarts it from its append-only file.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Result, async_trait};
use dq_servers::{Redis, RedisCluster};
use dq_testkit::behaviour::{self, BackendUnderTest, StoreClock, StoreUnderTest};
use dq_testkit::fixture::{CrashWorkload, blocking};
use tokio::sync::Mutex;

use crate::faults::fixture::{connect, retry, wait_until};

/// Reopening a store kills and restarts its server.
#[derive(Debug)]
struct CrashOnReopen {
    scheme: &'static str,
}

#[derive(Debug)]
struct CrashingStore {
    redis: Arc<Redis>,
    url: String,
    opened: Mutex<bool>,
}

#[async_trait]
impl BackendUnderTest for CrashOnReopen {
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>> {
        let redis = tokio::task::spawn_blocking(|| Arc::new(Redis::options().aof().start()));
        let redis = redis.await.expect("a server");
        let url = url_of(&redis, self.scheme);
        Ok(Box::new(CrashingStore { redis, url, opened: Mutex::new(false) }))
    }
}

#[async_trait]
impl StoreUnderTest for CrashingStore {
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

async fn acknowledged_calls_survive(stores: CrashOnReopen) {
    let trials = behaviour::trials_for(&stores).await.unwrap();
    let is_crash = |name: &str| name.starts_with("crash/") || name.contains("_a_crash");
    let crashes = trials.iter().filter(|trial| is_crash(trial.name()));
    let runs = crashes.map(|trial| async {
        let failure = trial.run(&stores).await.err();
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
    acknowledged_calls_survive(CrashOnReopen { scheme: "redis" }).await;
    acknowledged_calls_survive(CrashOnReopen { scheme: "redisson" }).await;
}

/// Checks the trace of clients' calls. Crashes the server after each pause, in milliseconds.
async fn run_workload_with_crashes(
    url: &str,
    crash: impl Fn() + Clone + Send + 'static,
    pauses: &[u64],
) {
    let workload = CrashWorkload {
        lease_for: Duration::from_millis(400),
        snooze: Duration::from_millis(200),
        min_done: 50,
        min_calls: 500,
    };
    let store = retry(|| connect(url)).await;
    let pauses: Vec<_> = pauses.iter().map(|pause| Duration::from_millis(*pause)).collect();
    workload.run(store, &pauses, async || blocking(crash.clone()).await).await;
}

async fn check_one_server(scheme: &str, options: &str) {
    let redis = Arc::new(Redis::options().aof().start());
    let url = url_of(&redis, scheme) + options;
    let crash = move || {
        redis.kill();
        redis.restart();
    };
    run_workload_with_crashes(&url, crash, &[150, 230, 90, 310, 170]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_the_server_is_killed() {
    check_one_server("redis", "").await;
    check_one_server("redisson", "").await;
    check_one_server("redisson", "?java_visibility=exact").await;
}

async fn check_a_cluster(scheme: &str, key: &'static str) {
    let cluster = Arc::new(RedisCluster::start(3));
    for node in cluster.nodes() {
        for setting in [["appendonly", "yes"], ["appendfsync", "always"]] {
            assert!(node.command(&["CONFIG", "SET", setting[0], setting[1]]).is_ok());
        }
        assert!(node.command(&["CONFIG", "REWRITE"]).is_ok());
    }
    // A server killed before the file's first rewrite ends loses the commands appended since.
    let is_complete = |node: &Redis| {
        let info = node.command(&["INFO", "persistence"]).text();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    };
    wait_until("the files are complete", async || cluster.nodes().iter().all(is_complete)).await;
    let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
    // Calls to a killed node end soon.
    let url = format!("{scheme}+cluster://{}?response_timeout=2s", nodes.join(","));
    let crash = move || {
        let owner = cluster.owner(key);
        owner.kill();
        owner.restart();
        cluster.wait_until_healthy();
    };
    run_workload_with_crashes(&url, crash, &[300, 400, 200]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_a_node_is_killed() {
    // The prefix is the hash tag of all native keys. A Redisson key's hash tag is the queue's name;
    // the workload uses a queue `a`.
    check_a_cluster("redis", "{dq}:queues").await;
    check_a_cluster("redisson", "dq:job:{a}").await;
}
