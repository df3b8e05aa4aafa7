//! Backends and jobs for the tests.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, ClaimParams, Claimed, Due, Entropy, Flow, HistoryLimit, HistoryLimits, LeasedJob,
    NewJob, Operation, QueueName, Settlement, SystemClock, Verdict, Want,
};
use dq_postgres::{PostgresBackend, PostgresConfig};

pub(crate) const LEASE: Duration = Duration::from_secs(30);

static ENTROPY: LazyLock<Entropy> = LazyLock::new(Entropy::from_os);

/// Connects to a URL, with a timeout longer than any call takes on a busy machine, without a
/// history.
pub(crate) async fn connect(url: &str) -> PostgresBackend {
    connect_schema(url, "dq").await
}

pub(crate) async fn connect_schema(url: &str, schema: &str) -> PostgresBackend {
    let mut config = PostgresConfig::new(url);
    config.schema = schema.to_owned();
    config.response_timeout = Duration::from_secs(60);
    let environment = Environment::default().history(HistoryLimits::all(HistoryLimit::OFF));
    PostgresBackend::connect(&config, &environment).await.unwrap()
}

/// The URL of a new database on a server for all tests of this program.
pub(crate) async fn database() -> String {
    tokio::task::spawn_blocking(|| dq_servers::shared_postgres().create_database()).await.unwrap()
}

/// Connects without the backend.
pub(crate) async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

pub(crate) fn job(due: impl Into<Due>) -> NewJob {
    let id = ENTROPY.job_id(dq_core::Clock::now(&SystemClock));
    NewJob::new(id, queue(), due, Bytes::from_static(b"payload"))
}

pub(crate) async fn claim(backend: &PostgresBackend, max: usize) -> Claimed {
    let wants = [Want::new(queue(), max, LEASE)];
    backend.claim(ClaimParams::new(&wants, max, "test")).await.unwrap()
}

pub(crate) async fn claim_as(
    backend: &PostgresBackend,
    max: usize,
    worker: &str,
) -> Vec<LeasedJob> {
    let wants = [Want::new(queue(), max, LEASE)];
    backend.claim(ClaimParams::new(&wants, max, worker)).await.unwrap().jobs
}

/// Declares the queue's limits.
pub(crate) async fn declare(backend: &PostgresBackend, flow: Flow) {
    backend.operate(Operation::DeclareFlow { queue: &queue(), flow }).await.unwrap();
}

pub(crate) async fn settle(backend: &PostgresBackend, jobs: &[LeasedJob], verdict: Verdict) {
    let settlements: Vec<Settlement> =
        jobs.iter().map(|job| Settlement::new(job.lease(), verdict.clone())).collect();
    let settled = backend.settle(&settlements).await.unwrap();
    assert_eq!(settled, vec![dq_core::Settled::Accepted; jobs.len()]);
}
