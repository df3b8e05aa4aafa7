//! A later library version on the same file: tables with additions, tables reserved for the later
//! version, and an upgrade while a process runs.

use std::sync::Arc;

use crate::common::{self, Fixture, MINUTE, assert_kind, claim, open_store, queue, settle, stats};
use dq_core::{
    Backend, DeadKind, Due, Error, ErrorKind, JobRef, Operation, Renewal, Renewed, Settled,
    Settlement, Verdict,
};
use dq_sqlite::rusqlite::TransactionBehavior;

fn assert_outdated(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.message().contains("version 3 of"), "{error}");
    assert!(error.remedy_text().unwrap().contains("upgrade dq-sqlite"), "{error}");
}

#[tokio::test]
async fn processes_use_tables_to_which_a_later_version_adds_as_before() {
    let fixture = Fixture::new();
    let running = fixture.open().await;
    full_life(&fixture, &running).await;
    for table in
        ["meta", "queue", "job", "due", "lease", "dead", "note", "ended", "pin", "runner", "flow"]
    {
        let column = "later INTEGER NOT NULL DEFAULT 1";
        fixture.execute(&format!("ALTER TABLE dq_{table} ADD COLUMN {column}"));
    }
    fixture.execute("CREATE TABLE dq_later (x); UPDATE dq_meta SET version = 3");
    full_life(&fixture, &running).await;
    let started = fixture.open().await;
    assert_eq!(fixture.integer("SELECT version FROM dq_meta"), 3, "is not changed back");
    full_life(&fixture, &started).await;
}

async fn full_life(fixture: &Fixture, backend: &dq_sqlite::SqliteBackend) {
    let _ = backend.schedule(vec![fixture.keyed("k", MINUTE)]).await.unwrap();
    let mut conn = fixture.conn();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let _ = backend.schedule_in(&transaction, vec![fixture.job(MINUTE)]).unwrap();
    transaction.commit().unwrap();
    fixture.clock.advance(MINUTE);
    let leased = claim(backend, 2).await.jobs;
    assert_eq!(leased.len(), 2);
    let renewal = Renewal::new(leased[0].lease(), MINUTE);
    assert!(matches!(backend.renew(&[renewal]).await.unwrap()[0], Renewed::Until(_)));
    let reason = dq_core::DeadReason::new(DeadKind::Rejected, "x");
    settle(backend, &leased[0], Verdict::Dead { reason, failed: true }).await;
    settle(backend, &leased[1], Verdict::retry(Due::NOW, "a reason")).await;
    let replay = Operation::Replay { queue: &queue(), jobs: &[leased[0].job.id], due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 1);
    assert_eq!(stats(backend).await.ready, 2);
    for job in claim(backend, 2).await.jobs {
        settle(backend, &job, Verdict::Done).await;
    }
    assert_eq!(stats(backend).await.stored(), 0);
}

#[tokio::test]
async fn a_version_that_may_not_write_or_read_is_refused_at_connecting() {
    for minimum in ["min_writer", "min_reader"] {
        let fixture = Fixture::new();
        fixture.open().await.close().await.unwrap();
        fixture.execute(&format!("UPDATE dq_meta SET version = 3, {minimum} = 3"));
        assert_outdated(&fixture.open_error(&fixture.config()).await);
    }
}

#[tokio::test]
async fn a_running_process_that_may_not_write_any_more_settles_what_it_holds() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    let _ = backend.schedule((0..3).map(|_| fixture.job(Due::NOW)).collect()).await.unwrap();
    let leased = claim(&*backend, 2).await.jobs;
    fixture.execute("UPDATE dq_meta SET version = 3, min_writer = 3");

    assert_outdated(&backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap_err());
    assert_outdated(&common::try_claim(&*backend, 1).await.unwrap_err());
    assert_outdated(&common::try_claim(&*backend, 0).await.unwrap_err());
    let target = JobRef::new(queue(), leased[0].job.id);
    assert_outdated(&backend.cancel(&[target]).await.unwrap_err());
    let pause = Operation::Pause { queue: &queue() };
    assert_outdated(&backend.operate(pause).await.unwrap_err());
    let mut conn = fixture.conn();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let refused = backend.schedule_in(&transaction, vec![fixture.job(Due::NOW)]);
    assert_outdated(&refused.unwrap_err());
    drop(transaction);
    let findings = backend.check().await;
    assert!(findings.iter().any(|finding| finding.code == "sqlite.outdated"), "{findings:?}");

    fixture.clock.advance(MINUTE / 2);
    let renewal = Renewal::new(leased[0].lease(), MINUTE);
    assert!(matches!(backend.renew(&[renewal]).await.unwrap()[0], Renewed::Until(_)));
    settle(&*backend, &leased[0], Verdict::Done).await;
    // The lease without renewal expires, although only newer versions return its job to the queue.
    fixture.clock.advance(MINUTE / 2);
    let late = Settlement::new(leased[1].lease(), Verdict::Done);
    assert_eq!(backend.settle(&[late]).await.unwrap(), [Settled::LostLease]);
    let late = Renewal::new(leased[1].lease(), MINUTE);
    assert_eq!(backend.renew(&[late]).await.unwrap(), [Renewed::LostLease]);
    let counts = stats(&*backend).await;
    assert_eq!((counts.ready, counts.totals.unwrap().done), (2, 1));
    assert_eq!(fixture.integer("SELECT count(*) FROM dq_lease"), 1, "nothing else is written");
}

#[tokio::test]
async fn a_refused_call_does_not_fail_a_settlement_of_the_same_transaction() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let leased = claim(&*backend, 1).await.jobs.remove(0);
    fixture.execute("UPDATE dq_meta SET version = 3, min_writer = 3");
    let lock = common::WriteLock::acquire(&fixture);
    let mut refused = Vec::new();
    for _ in 0..2 {
        let (backend, job) = (Arc::clone(&backend), fixture.job(Due::NOW));
        refused.push(tokio::spawn(async move { backend.schedule(vec![job]).await }));
        tokio::task::yield_now().await;
    }
    let settling = {
        let backend = Arc::clone(&backend);
        tokio::spawn(async move { settle(&*backend, &leased, Verdict::Done).await })
    };
    tokio::task::yield_now().await;
    lock.release();
    for call in refused {
        assert_outdated(&call.await.unwrap().unwrap_err());
    }
    settling.await.unwrap();
}

#[tokio::test]
async fn a_running_process_that_may_not_read_any_more_is_refused_and_still_settles() {
    let (fixture, backend) = open_store().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    fixture.execute("UPDATE dq_meta SET version = 3, min_writer = 3, min_reader = 3");
    assert_outdated(&backend.stats(&[queue()]).await.unwrap_err());
    assert_kind(backend.get(&JobRef::new(queue(), leased.job.id)).await, ErrorKind::Incompatible);
    settle(&backend, &leased, Verdict::Done).await;
}

#[tokio::test]
async fn a_running_process_that_may_not_write_any_more_settles_after_a_failed_commit() {
    let (fixture, backend) = open_store().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    fixture.execute("UPDATE dq_meta SET version = 3, min_writer = 3");
    common::fail_commits(&fixture, "DELETE ON dq_lease");
    let settlement = Settlement::new(leased.lease(), Verdict::Done);
    assert_kind(backend.settle(&[settlement]).await, ErrorKind::OutcomeUnknown);
    common::let_commits_succeed(&fixture);
    settle(&backend, &leased, Verdict::Done).await;
}
