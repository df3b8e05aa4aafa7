//! A fixture for stores: a directory for the database, a virtual clock, and job ids from a fixed
//! seed. Calls and assertions that the tests share.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, ClaimParams, Claimed, Clock, Due, Entropy, ErrorKind, HistoryLimit,
    HistoryLimits, JobId, JobKey, JobState, LeasedJob, NewJob, QueueName, QueueStats, Settlement,
    SystemClock, Timestamp, Verdict, VirtualClock, Want,
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

    pub(crate) fn config(&self) -> SqliteConfig {
        SqliteConfig::new(self.path())
    }

    /// With history.
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

    /// Opens a store without history, with a clock that can block it. The fixture's own clock never
    /// blocks.
    pub(crate) async fn open_with_blocking_clock(&self) -> (SqliteBackend, Arc<BlockingClock>) {
        let blocking_clock =
            Arc::new(BlockingClock { clock: self.clock.clone(), ..BlockingClock::default() });
        let environment = Environment::new(blocking_clock.clone(), self.entropy.clone());
        (SqliteBackend::open(&self.config(), &environment).await.unwrap(), blocking_clock)
    }

    /// Makes the store fail for jobs with this payload.
    pub(crate) fn reject_payload(&self, payload: &str) {
        let conn = Connection::open(self.path()).unwrap();
        conn.execute_batch(&format!(
            "CREATE TRIGGER reject_payload BEFORE INSERT ON dq_job \
             WHEN CAST(NEW.payload AS TEXT) = '{payload}' \
             BEGIN SELECT RAISE(ABORT, 'rejected payload'); END"
        ))
        .unwrap();
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

pub(crate) async fn dead_ids(backend: &dyn Backend) -> Vec<JobId> {
    let queue = queue();
    let params = BrowseParams::new(&queue, JobState::Dead).limit(1_000);
    backend.browse(params).await.unwrap().jobs.iter().map(|view| view.job.id).collect()
}

pub(crate) fn assert_kind<T: std::fmt::Debug>(result: dq_core::Result<T>, kind: ErrorKind) {
    assert_eq!(result.unwrap_err().kind(), kind);
}

/// A clock that can block its callers.
///
/// A reader reads it once per transaction, and so does the writer. So each blocked caller is a
/// transaction. The writer has then taken its tasks: later writes go into the next transaction.
#[derive(Debug, Default)]
pub(crate) struct BlockingClock {
    clock: Arc<VirtualClock>,
    blocked: AtomicBool,
    callers: AtomicUsize,
}

impl BlockingClock {
    pub(crate) fn block(&self) {
        self.blocked.store(true, Ordering::SeqCst);
    }

    pub(crate) fn unblock(&self) {
        self.blocked.store(false, Ordering::SeqCst);
    }

    pub(crate) fn blocked_callers(&self) -> usize {
        self.callers.load(Ordering::SeqCst)
    }

    pub(crate) async fn wait_for_blocked(&self, count: usize) {
        let start = Instant::now();
        while self.blocked_callers() < count {
            if start.elapsed() > TEST_TIMEOUT {
                let blocked = self.blocked_callers();
                // The runtime waits for the blocked threads when the test ends.
                self.unblock();
                panic!("{blocked} callers are blocked, not {count}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Clock for BlockingClock {
    fn now(&self) -> Timestamp {
        self.callers.fetch_add(1, Ordering::SeqCst);
        while self.blocked.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.callers.fetch_sub(1, Ordering::SeqCst);
        self.clock.now()
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.clock.sleep_until(until)
    }
}

/// Holds SQLite's write lock. The first write waits for it, and later writes gather behind the
/// first.
pub(crate) struct WriteLock(pub Connection);

impl WriteLock {
    pub(crate) fn acquire(fixture: &Fixture) -> Self {
        let conn = Connection::open(fixture.path()).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(conn)
    }

    pub(crate) fn release(self) {
        self.0.execute_batch("COMMIT").unwrap();
    }
}

/// Makes commits that store a job fail, by a foreign key violation checked only at the commit.
pub(crate) fn fail_commits(conn: &Connection) {
    conn.execute_batch(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER dangle AFTER INSERT ON dq_job BEGIN INSERT INTO child VALUES (1); END",
    )
    .unwrap();
}

pub(crate) fn let_commits_succeed(conn: &Connection) {
    conn.execute_batch("DROP TRIGGER dangle").unwrap();
}
