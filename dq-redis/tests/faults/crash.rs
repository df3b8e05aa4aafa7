//! The server is killed with SIGKILL under load, and restarted from its append-only file.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Result, async_trait};
use dq_servers::{Redis, RedisCluster};
use dq_testkit::behaviour::{self, BackendUnderTest, StoreClock, StoreUnderTest};
use dq_testkit::fixture::{CrashWorkload, blocking};
use tokio::sync::Mutex;

use crate::fixture::{connect, retry, wait_until};

/// Stores on servers of their own. Opening a store again kills and restarts its server.
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
    async fn open(&self) -> Result<Arc<dyn Backend>> {
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
        backend_from_url(&self.url)?.connect(&Environment::default()).await
    }

    fn clock(&self) -> StoreClock {
        StoreClock::Real
    }
}

fn url_of(redis: &Redis, scheme: &str) -> String {
    redis.url().replacen("redis", scheme, 1)
}

async fn acknowledged_calls_survive(killed: Killed) {
    let trials = behaviour::trials_for(&killed).await.unwrap();
    let crashes = trials.iter().filter(|trial| trial.name().starts_with("crash/"));
    let runs = crashes.map(|trial| async {
        let failure = trial.run(&killed).await.err();
        failure.map(|failure| format!("{}: {failure:?}", trial.name()))
    });
    let runs: Vec<_> = runs.collect();
    assert!(runs.len() >= 12, "{}", runs.len());
    let mut failed = Vec::new();
    for run in runs {
        failed.extend(run.await);
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_calls_survive_a_killed_server() {
    acknowledged_calls_survive(Killed { scheme: "redis" }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_calls_survive_a_killed_server_with_redisson_keys() {
    acknowledged_calls_survive(Killed { scheme: "redisson" }).await;
}

/// One of several clients that schedule, cancel, claim and settle while the server is killed. A client
/// makes one call at a time and repeats none: the checker knows what a lost reply may mean.
async fn client(number: usize, store: Arc<dyn Backend>, stop: Arc<AtomicBool>) {
    let name = ["a", "b"][number % 2];
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let mut jobs: Vec<_> = (0..5).map(|_| job(name)).collect();
        jobs.push(keyed(name, &format!("{number}-{}", round % 7)));
        let waiting = job(name);
        jobs.push(dq_core::NewJob {
            due: Due::After(Duration::from_millis(50)),
            ..waiting.clone()
        });
        store.schedule(jobs).await.ok();
        let targets: [JobRef; 1] = [by_id(&waiting)];
        store.cancel(&targets).await.ok();
        let claimed = claim_for(&*store, &[name], 6, Duration::from_millis(400)).await;
        let Ok(claimed) = claimed else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let settle = |(index, leased): (usize, &LeasedJob)| {
            let verdict = match index % 4 {
                0 => Verdict::Retry(Due::NOW),
                1 => Verdict::Release { started: true },
                _ => Verdict::Done,
            };
            let lease: Lease = leased.lease();
            Settlement { lease, verdict }
        };
        let settlements: Vec<_> = claimed.jobs.iter().enumerate().map(settle).collect();
        store.settle(&settlements).await.ok();
    }
}

/// Whether enough jobs were done for a meaningful check.
fn is_long_enough(history: &History) -> bool {
    history.done() > 50 && history.events().len() > 500
}

/// Four clients work while the server is killed and restarted after each of these pauses, in
/// milliseconds. Then the recorded history is checked.
async fn work_while_killed(url: &str, kill: impl Fn() + Clone + Send + 'static, pauses: &[u64]) {
    let recorder = Recorder::over(persist(|| connect(url)).await, Arc::new(SystemClock));
    let store: Arc<dyn Backend> = Arc::clone(&recorder) as Arc<dyn Backend>;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|number| tokio::spawn(client(number, Arc::clone(&store), Arc::clone(&stop))))
        .collect();
    for pause in pauses {
        tokio::time::sleep(Duration::from_millis(*pause)).await;
        tokio::task::spawn_blocking(kill.clone()).await.expect("it starts again");
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    until("enough jobs are done", async || is_long_enough(&recorder.0.history())).await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("no client panics");
    }
    persist(|| store.now()).await;
    let breaches = recorder.0.judge().await.expect("the store can be listed");
    let messages: Vec<String> = breaches.iter().map(ToString::to_string).collect();
    let events = recorder.0.history().events().len();
    assert!(messages.is_empty(), "of {events} events:\n{}", messages.join("\n"));
}

async fn work_on_one_server(scheme: &str, options: &str) {
    let redis = Arc::new(Redis::options().aof().start());
    let url = url_of(&redis, scheme) + options;
    let crash = move || {
        redis.kill();
        redis.restart();
    };
    work_while_killed(&url, crash, &[150, 230, 90, 310, 170]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_the_server_is_killed() {
    work_on_one_server("redis", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_the_server_is_killed_with_redisson_keys() {
    work_on_one_server("redisson", "").await;
    work_on_one_server("redisson", "?java_visibility=exact").await;
}

async fn work_on_a_cluster(scheme: &str, key: &'static str) {
    let cluster = Arc::new(RedisCluster::start(3));
    for node in cluster.nodes() {
        for setting in [["appendonly", "yes"], ["appendfsync", "always"]] {
            assert!(node.command(&["CONFIG", "SET", setting[0], setting[1]]).is_ok());
        }
        // So that the setting survives the restart.
        assert!(node.command(&["CONFIG", "REWRITE"]).is_ok());
    }
    // Redis reads appended commands only once the first file is complete.
    let is_complete = |node: &Redis| {
        let info = node.command(&["INFO", "persistence"]).text();
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
    };
    until("the files are complete", async || cluster.nodes().iter().all(is_complete)).await;
    let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
    let url = format!("{scheme}+cluster://{}?response_timeout=2s", nodes.join(","));
    let crash = move || {
        let owner = cluster.owner(key);
        owner.kill();
        owner.restart();
        cluster.wait_until_healthy();
    };
    work_while_killed(&url, crash, &[300, 400, 200]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_a_node_is_killed() {
    work_on_a_cluster("redis", "{dq}:queues").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_repeated_when_a_node_is_killed_with_redisson_keys() {
    work_on_a_cluster("redisson", "dq:job:{a}").await;
}
