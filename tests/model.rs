//! All backends answer the same calls as the memory backend does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq::backend::{Backend, backend_from_url};
use dq::config::Environment;
use dq::redis::{RedisBackend, RedisConfig};
use dq::{Clock, Entropy, HistoryLimit, HistoryLimits, MemoryBackend, QueueName, VirtualClock};
use dq_testkit::behaviour::TrialResult;
use dq_testkit::model::{self, Step};
use proptest::test_runner::{Config, TestCaseError, TestRunner};

fn environment(clock: Arc<dyn Clock>, history: HistoryLimit) -> Environment {
    let history = HistoryLimits::all(history);
    Environment::new(clock, Arc::new(Entropy::seeded(1))).history(history)
}

fn memory(clock: Arc<dyn Clock>, history: HistoryLimit) -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::with_history(clock, HistoryLimits::all(history)))
}

async fn compare_sqlite(steps: Vec<Step>, history: HistoryLimit) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Relaxed durability is faster; the test compares answers only.
    let url = format!("sqlite://{}?durability=relaxed", directory.path().join("jobs.db").display());
    let sqlite = backend_from_url(&url)?.connect(&environment(clock.clone(), history)).await?;
    model::check(memory(clock.clone(), history), sqlite, clock, &steps).await
}

async fn compare_server(url: String, steps: Vec<Step>, history: HistoryLimit) -> TrialResult {
    let environment = environment(Arc::new(dq::SystemClock), history);
    let subject = backend_from_url(&url)?.connect(&environment).await?;
    compare(subject, steps, history).await
}

async fn compare_sharded(steps: Vec<Step>, history: HistoryLimit) -> TrialResult {
    let mut config = RedisConfig::new(dq_servers::shared_redis().url());
    config.prefix = prefix();
    config.response_timeout = Duration::from_secs(60);
    // `*` stands for every queue.
    config.shards.insert(QueueName::new("*")?, 4);
    let environment = environment(Arc::new(dq::SystemClock), history);
    compare(Arc::new(RedisBackend::connect(&config, &environment).await?), steps, history).await
}

async fn compare(
    subject: Arc<dyn Backend>,
    steps: Vec<Step>,
    history: HistoryLimit,
) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let reference = memory(clock.clone(), history);
    let compared = model::check_real_time(reference, Arc::clone(&subject), clock, &steps).await;
    let closed = subject.close().await;
    compared?;
    Ok(closed?)
}

fn run_cases<F: Future<Output = TrialResult>>(
    cases: u32,
    check: impl Fn(Vec<Step>, HistoryLimit) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    // Without a history, only pins keep ids taken.
    let strategy = (model::steps(60), proptest::bool::ANY);
    let outcome = TestRunner::new(config).run(&strategy, |(steps, with_history)| {
        let history = if with_history { HistoryLimit::default() } else { HistoryLimit::OFF };
        let checked = runtime.block_on(check(steps, history));
        checked.map_err(|difference| TestCaseError::fail(difference.to_string()))
    });
    if let Err(difference) = outcome {
        panic!("{difference}");
    }
}

fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("model{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn redis_url(server: &dq_servers::Redis, scheme: &str) -> String {
    let url = server.url().replacen("redis://", scheme, 1);
    format!("{url}?response_timeout=60s&prefix={}", prefix())
}

#[test]
fn sqlite_answers_like_memory() {
    run_cases(96, compare_sqlite);
}

#[test]
fn redis_answers_like_memory() {
    let server = dq_servers::shared_redis();
    run_cases(48, |steps, history| compare_server(redis_url(server, "redis://"), steps, history));
}

#[test]
fn sharded_redis_answers_like_memory() {
    run_cases(12, compare_sharded);
}

#[test]
fn redis_expiry_answers_like_memory() {
    let server = dq_servers::Redis::options().set("notify-keyspace-events", "Ex").start();
    run_cases(24, |steps, history| {
        compare_server(redis_url(&server, "redis-expiry://"), steps, history)
    });
}

#[test]
fn redisson_answers_like_memory() {
    let server = dq_servers::Redis::start();
    for (cases, options) in [(36, ""), (12, "&java_visibility=exact"), (12, "&format=legacy")] {
        run_cases(cases, |steps, history| {
            // Java's queues have no prefix.
            server.command(&["FLUSHALL"]);
            compare_server(redis_url(&server, "redisson://") + options, steps, history)
        });
    }
}

#[test]
fn rabbitmq_answers_like_memory() {
    let server = dq_servers::shared_rabbitmq().url();
    run_cases(16, |steps, history| {
        // Without the ladder, which does not affect answers, a prefix has few queues.
        let options = "queues=classic&ladder=none&response_timeout=60s";
        compare_server(format!("{server}?prefix={}&{options}", prefix()), steps, history)
    });
}

#[test]
fn postgres_answers_like_memory() {
    let server = dq_servers::shared_postgres().url();
    run_cases(24, |steps, history| {
        let options = "connections=2&response_timeout=60s";
        compare_server(format!("{server}?schema={}&{options}", prefix()), steps, history)
    });
}
