//! Acceptance test for a queue in a database, on PostgreSQL and SQLite: jobs commit with the
//! caller's rows, and only a lease's holder ends its job. `cargo xtask faults` kills the processes.

use std::sync::Arc;
use std::time::Duration;

use dq::backend::{
    Backend, ClaimParams, LeasedJob, Renewal, Renewed, Settled, Settlement, SqlStatement, Verdict,
    Want,
};
use dq::sqlite::rusqlite::{Connection, TransactionBehavior};
use dq::{Dq, Due, JobKey, NewJob, QueueName};
use dq_servers::shared_postgres;
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(60);

const SHORT: Duration = Duration::from_millis(1);

/// A store, and its database's own client.
struct Store {
    url: String,
    dq: Dq,
    backend: Arc<dyn Backend>,
    dir: TempDir,
}

impl Store {
    async fn open(url: String, dir: TempDir) -> Self {
        let dq = Dq::connect(&url).await.unwrap();
        let store = Self { url, backend: dq.backend().clone(), dq, dir };
        store.run(&["CREATE TABLE effect (id integer)".to_owned()]).unwrap();
        store
    }

    async fn postgres() -> Self {
        let create = || shared_postgres().create_database();
        let url = tokio::task::spawn_blocking(create).await.unwrap();
        Self::open(url, tempfile::tempdir().unwrap()).await
    }

    async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::open(format!("sqlite://{}", dir.path().join("jobs.db").display()), dir).await
    }

    fn connection(&self) -> Connection {
        let connection = Connection::open(self.dir.path().join("jobs.db")).unwrap();
        connection.busy_timeout(LEASE).unwrap();
        connection
    }

    /// Runs statements in one transaction, which fails if one of them does.
    fn run(&self, statements: &[String]) -> Result<(), String> {
        if self.backend.name() == "postgres" {
            let sql = format!("BEGIN; {}; COMMIT", statements.join("; "));
            return shared_postgres().psql(&self.url, &sql).map(drop);
        }
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(|error| error.to_string())?;
        for statement in statements {
            transaction.execute(statement, []).map_err(|error| error.to_string())?;
        }
        transaction.commit().map_err(|error| error.to_string())
    }

    fn effects(&self) -> i64 {
        if self.backend.name() == "postgres" {
            let count = shared_postgres().psql(&self.url, "SELECT count(*) FROM effect").unwrap();
            return count.trim().parse().unwrap();
        }
        let connection = self.connection();
        connection.query_row("SELECT count(*) FROM effect", [], |row| row.get(0)).unwrap()
    }

    fn job(&self) -> NewJob {
        NewJob::new(self.dq.new_id(), queue(), Due::NOW, b"{}"[..].into())
    }

    async fn claim(&self, worker: &str, lease: Duration) -> Option<LeasedJob> {
        let wants = [Want::new(queue(), 1, lease)];
        self.backend.claim(ClaimParams::new(&wants, 1, worker)).await.unwrap().jobs.pop()
    }

    /// Claims once the last lease has expired.
    async fn claim_next(&self, worker: &str) -> LeasedJob {
        loop {
            if let Some(leased) = self.claim(worker, LEASE).await {
                return leased;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn settle(&self, leased: &LeasedJob, verdict: Verdict) -> Settled {
        let settlement = Settlement::new(leased.lease(), verdict);
        self.backend.settle(&[settlement]).await.unwrap().remove(0)
    }

    async fn renew(&self, leased: &LeasedJob) -> Renewed {
        let renewal = Renewal::new(leased.lease(), LEASE);
        self.backend.renew(&[renewal]).await.unwrap().remove(0)
    }

    async fn stored(&self) -> u64 {
        self.backend.stats(&[queue()]).await.unwrap()[0].stored()
    }
}

fn queue() -> QueueName {
    QueueName::new("acceptance").unwrap()
}

/// Writes the argument into the SQL.
fn inlined(statement: &SqlStatement) -> String {
    let argument = format!("'{}'", statement.argument().replace('\'', "''"));
    statement.sql().replace("$1", &argument).replace("?1", &argument)
}

fn effect() -> String {
    "INSERT INTO effect VALUES (1)".to_owned()
}

async fn a_job_commits_and_rolls_back_with_the_callers_rows(store: &Store) {
    let statement = inlined(&store.backend.schedule_statement(vec![store.job()]).unwrap());
    let fails = "INSERT INTO nowhere VALUES (1)".to_owned();
    store.run(&[effect(), statement.clone(), fails]).unwrap_err();
    assert_eq!((store.effects(), store.stored().await), (0, 0));
    store.run(&[effect(), statement]).unwrap();
    assert_eq!((store.effects(), store.stored().await), (1, 1));
    let leased = store.claim("worker", LEASE).await.unwrap();
    let done = inlined(&store.backend.done_statement(&leased.lease()).unwrap());
    store.run(&[effect(), done.clone(), "INSERT INTO nowhere VALUES (1)".to_owned()]).unwrap_err();
    assert_eq!((store.effects(), store.stored().await), (1, 1));
    store.run(&[effect(), done]).unwrap();
    assert_eq!((store.effects(), store.stored().await), (2, 0));
}

/// The successor may have the predecessor's name, like a restarted pod.
async fn a_successor_fences_its_predecessor(store: &Store, name: &str) {
    let effects = store.effects();
    assert!(store.backend.schedule(vec![store.job()]).await.unwrap()[0].is_stored());
    let stale = store.claim("pod", SHORT).await.unwrap();
    let successor = store.claim_next(name).await;
    assert!(successor.token > stale.token);
    assert_eq!(store.renew(&stale).await, Renewed::LostLease);
    for verdict in [Verdict::Done, Verdict::retry(Due::NOW, "stale")] {
        assert_eq!(store.settle(&stale, verdict).await, Settled::LostLease);
    }
    let done = inlined(&store.backend.done_statement(&stale.lease()).unwrap());
    let error = store.run(&[effect(), done]).unwrap_err();
    assert!(error.contains("dq: the lease"), "{error}");
    assert_eq!(store.effects(), effects);
    assert!(matches!(store.renew(&successor).await, Renewed::Until(_)));
    assert_eq!(store.settle(&successor, Verdict::Done).await, Settled::Accepted);
}

/// Even if nobody has claimed the job since.
async fn nothing_is_accepted_after_expiry(store: &Store) {
    assert!(store.backend.schedule(vec![store.job()]).await.unwrap()[0].is_stored());
    let late = store.claim("worker", SHORT).await.unwrap();
    while store.backend.now().await.unwrap() < late.leased_until {
        tokio::time::sleep(SHORT).await;
    }
    assert_eq!(store.renew(&late).await, Renewed::LostLease);
    assert_eq!(store.settle(&late, Verdict::Done).await, Settled::LostLease);
    let recovered = store.claim_next("worker").await;
    assert_eq!((recovered.job.id, recovered.job.losses), (late.job.id, 1));
    assert_eq!(store.settle(&recovered, Verdict::Done).await, Settled::Accepted);
}

async fn a_fresh_worker_takes_up_a_retry(store: &Store) {
    assert!(store.backend.schedule(vec![store.job()]).await.unwrap()[0].is_stored());
    let failed = store.claim("first", LEASE).await.unwrap();
    let retry = Verdict::retry(Due::NOW, "the gateway is away");
    assert_eq!(store.settle(&failed, retry).await, Settled::Accepted);
    // Another client, like a process that starts now.
    let fresh = Dq::connect(&store.url).await.unwrap();
    let wants = [Want::new(queue(), 1, LEASE)];
    let params = ClaimParams::new(&wants, 1, "second");
    let taken = fresh.backend().claim(params).await.unwrap().jobs.remove(0);
    assert_eq!((taken.job.id, taken.job.attempts), (failed.job.id, 1));
    assert_eq!(store.settle(&taken, Verdict::Done).await, Settled::Accepted);
}

async fn a_concurrent_writer_is_no_error(store: &Arc<Store>) {
    let job = store.job().key(JobKey::new("k").unwrap());
    let statement = inlined(&store.backend.schedule_statement(vec![job.clone()]).unwrap());
    let writer = Arc::clone(store);
    let (writes, written) = tokio::sync::oneshot::channel();
    let writing = tokio::task::spawn_blocking(move || {
        let wait = if writer.backend.name() == "postgres" {
            writes.send(()).unwrap();
            writer.run(&[statement, "SELECT pg_sleep(0.3)".to_owned()])
        } else {
            let mut connection = writer.connection();
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            transaction.execute(&statement, []).unwrap();
            writes.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            transaction.commit().map_err(|error| error.to_string())
        };
        wait.unwrap();
    });
    written.await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (backend, job) = (Arc::clone(&store.backend), job.clone());
        calls.spawn(async move { backend.schedule(vec![job]).await.unwrap()[0].id() });
    }
    assert_eq!(calls.join_all().await, vec![job.id; 20]);
    writing.await.unwrap();
    assert_eq!(store.stored().await, 1);
}

async fn accept(store: Store) {
    let store = Arc::new(store);
    a_job_commits_and_rolls_back_with_the_callers_rows(&store).await;
    a_successor_fences_its_predecessor(&store, "another pod").await;
    a_successor_fences_its_predecessor(&store, "pod").await;
    nothing_is_accepted_after_expiry(&store).await;
    a_fresh_worker_takes_up_a_retry(&store).await;
    a_concurrent_writer_is_no_error(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_accepted() {
    accept(Store::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_accepted() {
    accept(Store::sqlite().await).await;
}
