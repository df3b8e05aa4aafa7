//! Statements for the caller's own transaction.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, ClaimParams, Due, Ending, ErrorKind, Flow, HistoryLimit, HistoryLimits, JobKey,
    JobRef, OnConflict, OnRunning, Operation, Settled, Settlement, SqlStatement, Verdict, Want,
};
use dq_sqlite::SqliteBackend;
use dq_sqlite::rusqlite::{Connection, Result};

use crate::common::{Fixture, queue, stats};

const LEASE: Duration = Duration::from_secs(30);

/// Triggers have no virtual clock.
async fn open(history: HistoryLimit) -> (Fixture, SqliteBackend) {
    let fixture = Fixture::new();
    let environment = Environment::default().history(HistoryLimits::all(history));
    let backend = SqliteBackend::open(&fixture.config(), &environment).await.unwrap();
    (fixture, backend)
}

fn execute(conn: &Connection, statement: &SqlStatement) -> Result<usize> {
    conn.execute(statement.sql(), [statement.argument()])
}

async fn claim(backend: &SqliteBackend, lease: Duration) -> Vec<dq_core::LeasedJob> {
    let wants = [Want::new(queue(), 10, lease)];
    backend.claim(ClaimParams::new(&wants, 10, "test")).await.unwrap().jobs
}

#[tokio::test]
async fn a_statement_stores_jobs_like_a_call() {
    let (fixture, backend) = open(HistoryLimit::default()).await;
    let conn = fixture.conn();
    let mut first = fixture.keyed("k", Due::NOW).max_attempts(7);
    first.payload = vec![0, 255].into();
    first.headers.insert("tenant", "'\"");
    let jobs = vec![first.clone(), fixture.keyed("k", Due::NOW), fixture.job(Due::After(LEASE))];
    execute(&conn, &backend.schedule_statement(jobs).unwrap()).unwrap();
    let counts = stats(&backend).await;
    assert_eq!((counts.ready, counts.scheduled), (1, 1), "one key, one job");
    let stored = claim(&backend, LEASE).await.remove(0).job;
    assert_eq!(
        (stored.id, &stored.payload, &stored.headers),
        (first.id, &first.payload, &first.headers)
    );
    assert_eq!((stored.max_attempts, &stored.key), (Some(7), &first.key));
    let keyed = || fixture.job(Due::NOW).key(JobKey::new("k").unwrap());
    let mut detaching = keyed();
    detaching.on_running = OnRunning::Detach;
    let mut remembered = keyed();
    remembered.remember = LEASE;
    for job in [keyed().on_conflict(OnConflict::Replace), detaching, remembered] {
        let error = backend.schedule_statement(vec![job]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn a_job_ends_with_the_transaction_unless_its_lease_is_lost() {
    for (limit, in_history) in [(HistoryLimit::default(), 1), (HistoryLimit::OFF, 0)] {
        let (fixture, backend) = open(limit).await;
        let mut job = fixture.job(Due::NOW);
        job.remember = LEASE;
        let _ = backend.schedule(vec![job.clone()]).await.unwrap();
        let lost = claim(&backend, Duration::from_millis(1)).await.remove(0);
        let held = loop {
            if let Some(leased) = claim(&backend, LEASE).await.pop() {
                break leased;
            }
        };
        let mut conn = fixture.conn();
        let tx = conn.transaction().unwrap();
        let error = execute(&tx, &backend.done_statement(&lost.lease()).unwrap()).unwrap_err();
        assert!(error.to_string().contains("dq: the lease of the job is lost"), "{error}");
        drop(tx);
        let done = backend.done_statement(&held.lease()).unwrap();
        let tx = conn.transaction().unwrap();
        execute(&tx, &done).unwrap();
        drop(tx);
        assert_eq!(stats(&backend).await.running, 1, "rolled back");
        execute(&conn, &done).unwrap();
        execute(&conn, &done).unwrap_err();
        let counts = stats(&backend).await;
        let totals = counts.totals.unwrap();
        assert_eq!((counts.stored(), totals.created, totals.done), (0, 1, 1));
        assert_eq!(fixture.integer("SELECT sum(ended) FROM dq_queue"), in_history);
        assert_eq!(fixture.integer("SELECT count(*) FROM dq_pin"), 1);
        assert_eq!(fixture.integer("SELECT count(*) FROM dq_note"), 0);
        let view = backend.get(&JobRef::new(queue(), job.id)).await.unwrap();
        let ended = view.map(|view| (view.ended.unwrap().ending, view.job.deliveries));
        assert_eq!(ended, (in_history == 1).then_some((Ending::Done, 2)));
    }
}

#[tokio::test]
async fn a_job_that_ends_with_a_transaction_makes_room_in_its_group() {
    let (fixture, backend) = open(HistoryLimit::OFF).await;
    let flow = Flow::UNLIMITED.group_max_running(1);
    backend.operate(Operation::DeclareFlow { queue: &queue(), flow }).await.unwrap();
    let jobs: Vec<_> = (0..3).map(|_| fixture.job(Due::NOW).group("a")).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let _ = backend.schedule(jobs).await.unwrap();
    for id in ids {
        let leased = claim(&backend, LEASE).await;
        assert_eq!(leased.iter().map(|leased| leased.job.id).collect::<Vec<_>>(), [id]);
        let done = backend.done_statement(&leased[0].lease()).unwrap();
        execute(&fixture.conn(), &done).unwrap();
    }
    assert_eq!(stats(&backend).await.stored(), 0);
}

/// Rows that another program has deleted or damaged, and one that it has returned.
#[tokio::test]
async fn a_group_goes_on_after_damaged_rows() {
    for damage in [
        "DELETE FROM dq_job WHERE seq = 2",
        "UPDATE dq_job SET headers = '{\"dq-group\":1}' WHERE seq = 2",
        "INSERT INTO dq_due SELECT q, at, seq FROM dq_parked WHERE seq = 2",
        "UPDATE dq_job SET due = due - 1 WHERE seq = 2",
    ] {
        let (fixture, backend) = open(HistoryLimit::OFF).await;
        let flow = Flow::UNLIMITED.group_max_running(1);
        backend.operate(Operation::DeclareFlow { queue: &queue(), flow }).await.unwrap();
        let jobs: Vec<_> = (0..3).map(|_| fixture.job(Due::NOW).group("a")).collect();
        let (second, last) = (jobs[1].id, jobs[2].id);
        let _ = backend.schedule(jobs).await.unwrap();
        let first = claim(&backend, LEASE).await.remove(0);
        fixture.execute(damage);
        let done = Settlement::new(first.lease(), Verdict::Done);
        assert_eq!(backend.settle(&[done]).await.unwrap(), [Settled::Accepted], "{damage}");
        let _ = backend.cancel(&[JobRef::new(queue(), second)]).await.unwrap();
        let mut claimed = Vec::new();
        for _ in 0..2 {
            claimed.extend(claim(&backend, LEASE).await);
        }
        let ids: Vec<_> = claimed.iter().map(|leased| leased.job.id).collect();
        assert_eq!(ids, [last], "{damage}");
    }
}
