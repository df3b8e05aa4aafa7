//! All backends give the same answers to the same calls as the memory backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dq::backend::{Backend, backend_from_url};
use dq::config::Environment;
use dq::{Clock, Entropy, HistoryLimit, HistoryLimits, VirtualClock};
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

/// Compares the store at this URL, which must be empty.
async fn compare_server(url: String, steps: Vec<Step>) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let (reference, subject) =
        (Arc::new(memory(clock.clone())), open(&url, Arc::new(dq::SystemClock)).await?);
    let compared = model::check_real_time(reference, Arc::clone(&subject), clock, &steps).await;
    let closed = subject.close().await;
    compared?;
    Ok(closed?)
}

/// Checks this many random sequences of steps.
fn run_cases<F: Future<Output = TrialResult>>(cases: u32, check: impl Fn(Vec<Step>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&model::steps(60), |steps| {
        let checked = runtime.block_on(check(steps));
        checked.map_err(|difference| TestCaseError::fail(difference.to_string()))
    });
    if let Err(difference) = outcome {
        panic!("{difference}");
    }
}

/// A prefix that no other case has.
fn prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("model{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The URL of a Redis server for this backend.
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
    run_cases(48, |steps| compare_server(redis_url(server, "redis://"), steps));
}

#[test]
fn redis_expiry_answers_like_memory() {
    let server = dq_servers::Redis::options().set("notify-keyspace-events", "Ex").start();
    run_cases(24, |steps| compare_server(redis_url(&server, "redis-expiry://"), steps));
}

#[test]
fn redisson_answers_like_memory() {
    let server = dq_servers::Redis::start();
    run_cases(48, |steps| {
        // Queues of Java have no prefix.
        server.command(&["FLUSHALL"]);
        compare_server(redis_url(&server, "redisson://"), steps)
    });
}

#[test]
fn rabbitmq_answers_like_memory() {
    let server = dq_servers::shared_rabbitmq().url();
    run_cases(16, |steps| {
        // Without the ladder, which has no part in answers, a prefix has few queues.
        let options = "queues=classic&ladder=none&replica=eager&response_timeout=60s";
        compare_server(format!("{server}?prefix={}&{options}", prefix()), steps)
    });
}
