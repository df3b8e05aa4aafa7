//! All backends give the same answers to the same calls as the memory backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dq::backend::{Backend, backend_from_url};
use dq::config::Environment;
use dq::{Clock, Entropy, HistoryLimit, HistoryLimits, SystemClock, VirtualClock};
use dq_servers::{Redis, shared_rabbitmq, shared_redis};
use dq_testkit::behaviour::TrialResult;
use dq_testkit::fixture::memory;
use dq_testkit::model::{self, Step};
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// A backend for this URL that remembers ended jobs.
async fn open(url: &str, clock: Arc<dyn Clock>) -> dq::Result<Arc<dyn Backend>> {
    let history = HistoryLimits::all(HistoryLimit::default());
    let environment = Environment::new(clock, Arc::new(Entropy::seeded(1))).history(history);
    backend_from_url(url)?.connect(&environment).await
}

async fn compare_sqlite(steps: Vec<Step>) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Relaxed durability is faster; the test compares answers only.
    let url = format!("sqlite://{}?durability=relaxed", directory.path().join("jobs.db").display());
    let sqlite = open(&url, clock.clone()).await?;
    model::check(Arc::new(memory(clock.clone())), sqlite, clock, &steps).await
}

/// Compares an empty store, which tells the time by itself.
async fn compare_real_time(url: String, steps: Vec<Step>) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let subject = open(&url, Arc::new(SystemClock)).await?;
    let compared = model::check_real_time(
        Arc::new(memory(clock.clone())),
        Arc::clone(&subject),
        clock,
        &steps,
    );
    let result = compared.await;
    subject.close().await?;
    result
}

/// Compares answers to this many random sequences of calls.
fn compare<F: Future<Output = TrialResult>>(cases: u32, compare: impl Fn(Vec<Step>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let compared = TestRunner::new(config).run(&model::steps(60), |steps| {
        let compared = runtime.block_on(compare(steps));
        compared.map_err(|difference| TestCaseError::fail(difference.to_string()))
    });
    if let Err(difference) = compared {
        panic!("{difference}");
    }
}

/// A prefix that no other case has.
fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("model{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The URL of a Redis server for this backend.
fn redis_url(server: &Redis, scheme: &str) -> String {
    let url = server.url().replacen("redis://", scheme, 1);
    format!("{url}?response_timeout=60s&prefix={}", prefix())
}

#[test]
fn sqlite_answers_like_memory() {
    compare(96, compare_sqlite);
}

#[test]
fn redis_answers_like_memory() {
    compare(48, |steps| compare_real_time(redis_url(shared_redis(), "redis://"), steps));
}

#[test]
fn redis_expiry_answers_like_memory() {
    let server = Redis::options().set("notify-keyspace-events", "Ex").start();
    compare(24, |steps| compare_real_time(redis_url(&server, "redis-expiry://"), steps));
}

#[test]
fn redisson_answers_like_memory() {
    let server = Redis::start();
    compare(48, |steps| {
        // Queues of Java have no prefix.
        server.command(&["FLUSHALL"]);
        compare_real_time(redis_url(&server, "redisson://"), steps)
    });
}

#[test]
fn rabbitmq_answers_like_memory() {
    let server = shared_rabbitmq().url();
    compare(16, |steps| {
        // Without the ladder, which has no part in answers, a prefix has few queues.
        let options = "queues=classic&ladder=none&replica=eager&response_timeout=60s";
        compare_real_time(format!("{server}?prefix={}&{options}", prefix()), steps)
    });
}
