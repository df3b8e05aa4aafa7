//! A store's fixture, and calls and assertions that the tests share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, ClaimParams, Claimed, Clock, Due, Entropy, ErrorKind, HistoryLimit, HistoryLimits,
    JobKey, LeasedJob, NewJob, QueueName, QueueStats, Settlement, SystemClock, Verdict,
    VirtualClock, Want,
};
use dq_sqlite::rusqlite::Connection;
use dq_sqlite::{SqliteBackend, SqliteConfig};
use tempfile::TempDir;

pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) clock: Arc<VirtualClock>,
    entropy: Arc<Entropy>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, clock: Arc::default(), entropy: Arc::new(Entropy::seeded(7)) }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("jobs.db")
    }

    pub(crate) fn conn(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    pub(crate) fn execute(&self, sql: &str) {
        self.conn().execute_batch(sql).unwrap();
    }

    pub(crate) fn integer(&self, sql: &str) -> i64 {
        self.conn().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub(crate) fn config(&self) -> SqliteConfig {
        SqliteConfig::new(self.path())
    }

    pub(crate) fn environment(&self) -> Environment {
        Environment::new(self.clock.clone(), self.entropy.clone())
            .history(HistoryLimits::all(HistoryLimit::default()))
    }

    pub(crate) async fn open(&self) -> SqliteBackend {
        self.open_with(|_| ()).await
    }

    pub(crate) async fn open_with(&self, change: impl FnOnce(&mut SqliteConfig)) -> SqliteBackend {
        let mut config = self.config();
        change(&mut config);
        SqliteBackend::open(&config, &self.environment()).await.unwrap()
    }

    pub(crate) fn reject_payload(&self, payload: &str) {
        self.execute(&format!(
            "CREATE TRIGGER reject_payload BEFORE INSERT ON dq_job \
             WHEN CAST(NEW.payload AS TEXT) = '{payload}' \
             BEGIN SELECT RAISE(ABORT, 'rejected payload'); END"
        ));
    }

    pub(crate) async fn open_error(&self, config: &SqliteConfig) -> dq_core::Error {
        let error = SqliteBackend::open(config, &self.environment()).await.unwrap_err();
        assert!(error.remedy_text().is_some(), "{error}");
        error
    }

    pub(crate) fn job(&self, due: impl Into<Due>) -> NewJob {
        let id = self.entropy.job_id(self.clock.now());
        NewJob::new(id, queue(), due, Bytes::from_static(b"{}"))
    }

    pub(crate) fn keyed(&self, key: &str, due: impl Into<Due>) -> NewJob {
        self.job(due).key(JobKey::new(key).unwrap())
    }
}

pub(crate) async fn open_store() -> (Fixture, SqliteBackend) {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    (fixture, backend)
}

pub(crate) fn real_environment() -> Environment {
    let environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
    environment.history(HistoryLimits::all(HistoryLimit::default()))
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Longer than any step takes on a busy machine; reached only when a test fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn claim(backend: &dyn Backend, max: usize) -> Claimed {
    try_claim(backend, max).await.unwrap()
}

pub(crate) async fn try_claim(backend: &dyn Backend, max: usize) -> dq_core::Result<Claimed> {
    let wants = [Want::new(queue(), max, MINUTE)];
    backend.claim(ClaimParams::new(&wants, max, "test")).await
}

pub(crate) async fn settle(backend: &dyn Backend, leased: &LeasedJob, verdict: Verdict) {
    let settlement = Settlement::new(leased.lease(), verdict);
    let settled = backend.settle(&[settlement]).await.unwrap();
    assert_eq!(settled, [dq_core::Settled::Accepted]);
}

pub(crate) async fn stats(backend: &dyn Backend) -> QueueStats {
    let stats = backend.stats(&[queue()]).await.unwrap().remove(0);
    assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
    stats
}

pub(crate) fn assert_kind<T: std::fmt::Debug>(result: dq_core::Result<T>, kind: ErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

/// Holds SQLite's write lock. The first write waits for it, and later writes gather behind the
/// first.
pub(crate) struct WriteLock(pub Connection);

impl WriteLock {
    pub(crate) fn acquire(fixture: &Fixture) -> Self {
        let conn = fixture.conn();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(conn)
    }

    pub(crate) fn release(self) {
        self.0.execute_batch("COMMIT").unwrap();
    }
}

/// Makes commits that `event` a row fail, by a foreign key violation checked only at the commit.
/// The event is such as `INSERT ON dq_job`.
pub(crate) fn fail_commits(fixture: &Fixture, event: &str) {
    fixture.execute(&format!(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER dangle AFTER {event} BEGIN INSERT INTO child VALUES (1); END"
    ));
}

pub(crate) fn let_commits_succeed(fixture: &Fixture) {
    fixture.execute("DROP TRIGGER dangle");
}
