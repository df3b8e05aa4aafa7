//! Processes of several versions share a log. Here, versions are levels that a process understands.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, QueueSettings};
use dq_core::{
    Backend, DelayHandler, Dq, Error, ErrorKind, HandlerResult, JobContext, Outcome, QueueCode,
};
use dq_servers::RabbitCluster;
use dq_testkit::fixture::{TIMEOUT, blocking, by_id, job, poll, retry, stats, wait_until};

use super::fixture::{assert_error, config, config_for};
use crate::RabbitBackend;
use crate::config::{QueueKind, RabbitConfig};
use crate::log::LevelSettings;
use crate::log::wire::Levels;

/// A version that understands levels up to this one.
fn version(max: u16) -> LevelSettings {
    LevelSettings {
        levels: Levels { min: 1, max },
        renew_every: Duration::from_millis(20),
        ttl: Duration::from_secs(600),
        // Less than `renew_every`, which is safe only because no test deletes the log.
        raise_after: Duration::ZERO,
    }
}

fn classic(vhost: &str) -> RabbitConfig {
    let mut config = config(vhost);
    config.queues = QueueKind::Classic;
    config
}

async fn start(
    config: &RabbitConfig,
    levels: LevelSettings,
) -> dq_core::Result<Arc<RabbitBackend>> {
    let environment = Environment::default();
    RabbitBackend::connect_with_levels(config, &environment, levels).await.map(Arc::new)
}

/// As [`start`], while nodes are lost: for a moment the cluster may give no reply in time.
async fn start_at_last(config: &RabbitConfig, levels: LevelSettings) -> Arc<RabbitBackend> {
    retry(|| start(config, levels)).await
}

/// Waits for some more hellos of all live processes together, and returns the level in force. The
/// processes say hello equally often, and try to raise the level after each hello. So a process that
/// wants to raise it has very likely tried, although the hellos need not be its own.
async fn level_after_a_while(backend: &RabbitBackend) -> u16 {
    let before = backend.hellos();
    wait_until("the processes say hello again", async || backend.hellos() >= before + 5).await;
    backend.level()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deployment_raises_the_level_when_the_last_old_process_has_left() {
    let config = classic("levels");
    let [first, second] =
        [start(&config, version(1)).await.unwrap(), start(&config, version(1)).await.unwrap()];
    let new = job("q");
    first.schedule(vec![new.clone()]).await.unwrap();
    first.close().await.unwrap();
    let upgraded = start(&config, version(2)).await.unwrap();
    assert_eq!(level_after_a_while(&upgraded).await, 1, "the second is still old");
    // The deployment is rolled back in the middle.
    let rolled_back = start(&config, version(1)).await.unwrap();
    second.close().await.unwrap();
    assert_eq!(level_after_a_while(&upgraded).await, 1);
    upgraded.close().await.unwrap();
    let queue = job("q").queue;
    assert_eq!(stats(&*rolled_back, queue.as_str()).await.ready, 1);
    // And rolled out again.
    let upgraded = start(&config, version(2)).await.unwrap();
    // The level may be raised before it reads that it has left.
    if let Err(error) = rolled_back.close().await {
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    }
    wait_until("the level is raised", async || upgraded.level() == 2).await;
    let words = ["level 2", "newer version"];
    let refused = start(&config, version(1)).await.unwrap_err();
    assert_error(&refused, ErrorKind::Incompatible, &words);
    let other = start(&config, version(2)).await.unwrap();
    assert_eq!((other.level(), stats(&*other, queue.as_str()).await.ready), (2, 1));
}

struct Nothing;

impl DelayHandler for Nothing {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "q".to_owned()
    }

    async fn handle(&self, _: JobContext, _: String) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

/// The old process says hello once; then it is too slow to say it again.
#[tokio::test(flavor = "multi_thread")]
async fn the_runner_of_a_process_that_was_left_behind_returns_the_error() {
    let config = classic("left-behind");
    let slow = LevelSettings {
        renew_every: Duration::from_secs(3_600),
        ttl: Duration::from_millis(50),
        ..version(1)
    };
    let old = start(&config, slow).await.unwrap();
    let dq = Dq::builder().backend(Arc::clone(&old) as Arc<dyn Backend>).connect().await.unwrap();
    let runner = dq.runner().without_linked_handlers();
    let runner = runner.queue("q", QueueSettings::new()).handler(Nothing).build().unwrap();
    let runner = tokio::spawn(runner.run_until(std::future::pending::<()>()));
    let upgraded = start(&config, version(2)).await.unwrap();
    wait_until("the level is raised", async || upgraded.level() == 2).await;
    let ended = tokio::time::timeout(TIMEOUT, runner).await.expect("the runner ends").unwrap();
    let words = ["level 2", "newer version"];
    assert_error(&ended.unwrap_err(), ErrorKind::Incompatible, &words);
    assert_error(&old.close().await.unwrap_err(), ErrorKind::Incompatible, &words);
}

/// Runs a process until it sees this, then kills it.
async fn kill_when(
    config: &RabbitConfig,
    levels: LevelSettings,
    what: &'static str,
    sees: fn(&RabbitBackend) -> bool,
) {
    let config = config.clone();
    blocking(move || {
        let process = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        process.block_on(async {
            let backend = start_at_last(&config, levels).await;
            wait_until(what, async || sees(&backend)).await;
            std::mem::forget(backend);
        });
        process.shutdown_background();
    })
    .await;
}

/// A hello of a killed process ends after this.
const SHORT: Duration = Duration::from_millis(500);

/// A process that is killed does not hold up a raise for longer than its hello lasts.
#[tokio::test(flavor = "multi_thread")]
async fn the_hello_of_a_killed_process_lapses() {
    let config = classic("killed");
    let levels = LevelSettings { ttl: SHORT, ..version(1) };
    kill_when(&config, levels, "it is open", |_| true).await;
    let upgraded = start(&config, version(2)).await.unwrap();
    wait_until("the level is raised", async || upgraded.level() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raise_survives_kills_between_its_steps() {
    raise_with_kills(&classic("killed-steps"), async || {}).await;
}

/// The third of three nodes is cut off before the first step, with an old process that is connected
/// to it and reads no more. It is left behind when its hello lapses.
#[tokio::test(flavor = "multi_thread")]
async fn a_raise_on_three_nodes_survives_kills_while_one_is_cut_off() {
    let cluster = Arc::new(blocking(|| RabbitCluster::start(3)).await);
    let addresses: Vec<_> = cluster.nodes().iter().map(|node| node.address()).collect();
    let on = |addresses: &[_]| {
        let mut config = config_for(format!("amqp://dq:secret@{}", addresses.join(",")));
        config.response_timeout = Duration::from_secs(10);
        config
    };
    let config = on(&addresses[..2]);
    // It declares the queues, while all nodes are there.
    start_at_last(&config, version(1)).await.close().await.unwrap();
    let levels = LevelSettings { ttl: SHORT, ..version(1) };
    let behind = start_at_last(&on(&addresses[2..]), levels).await;
    raise_with_kills(&config, async || {
        let cluster = Arc::clone(&cluster);
        blocking(move || cluster.partition(2)).await;
    })
    .await;
    assert_eq!(behind.level(), 1, "it is cut off");
    let healed = Arc::clone(&cluster);
    blocking(move || healed.heal()).await;
    let words = ["level 2", "newer version"];
    // What it stores before it reads that is a job like any other.
    let mut calls = Vec::new();
    let refused = poll("it reads that it was left behind", async || {
        let new = job("q");
        let error = behind.schedule(vec![new.clone()]).await.err();
        calls.push((new, error.as_ref().map(Error::kind)));
        error.filter(|error| error.kind() == ErrorKind::Incompatible)
    });
    assert_error(&refused.await, ErrorKind::Incompatible, &words);
    let last = start_at_last(&on(&addresses[2..]), version(2)).await;
    assert_eq!(last.level(), 2);
    for (new, error) in calls {
        let is_stored = last.get(&by_id(&new)).await.unwrap().is_some();
        match error {
            None => assert!(is_stored, "a call that succeeded"),
            Some(ErrorKind::OutcomeUnknown) => {}
            Some(kind) => assert!(!is_stored, "a call that failed: {kind:?}"),
        }
    }
}

/// Raises the level in a log in which nobody knows level 2, and kills a process after each step:
/// a new process says hello, the hellos of old processes end, the level is raised, the others read
/// that. In between, all of it is rolled back. `disturb` is called before the first step.
async fn raise_with_kills(config: &RabbitConfig, disturb: impl AsyncFnOnce()) {
    let new = job("q");
    let patient = LevelSettings { raise_after: Duration::from_secs(3_600), ..version(2) };
    let mortal = LevelSettings { ttl: SHORT, ..patient };
    let old = start_at_last(config, version(1)).await;
    old.schedule(vec![new.clone()]).await.unwrap();
    disturb().await;
    wait_until("no other process lives", async || old.live_processes() == 1).await;
    kill_when(config, mortal, "it says hello", |new| new.live_processes() == 2).await;
    wait_until("the hello of the killed process ends", async || old.live_processes() == 1).await;
    old.close().await.unwrap();

    let levels = LevelSettings { ttl: SHORT, ..version(1) };
    kill_when(config, levels, "it is open", |_| true).await;
    kill_when(config, mortal, "the old hello ends", |new| new.live_processes() == 1).await;

    // Before the raise, all of it can be rolled back.
    let rolled_back = start_at_last(config, version(1)).await;
    let hasty = start_at_last(config, version(2)).await;
    assert_eq!(level_after_a_while(&hasty).await, 1);
    hasty.close().await.unwrap();
    rolled_back.close().await.unwrap();

    let witness = start_at_last(config, patient).await;
    assert_eq!(witness.level(), 1);
    let levels = LevelSettings { ttl: SHORT, ..version(2) };
    kill_when(config, levels, "the level is raised", |new| new.level() == 2).await;
    wait_until("others read that", async || witness.level() == 2).await;
    wait_until("its hello ends", async || witness.live_processes() == 1).await;
    let words = ["level 2", "newer version"];
    let refused = poll("a retry cannot help", async || {
        start(config, version(1)).await.err().filter(|error| !error.is_retryable())
    });
    assert_error(&refused.await, ErrorKind::Incompatible, &words);
    let last = start_at_last(config, version(2)).await;
    assert_eq!((last.level(), stats(&*last, "q").await.ready), (2, 1));
}
