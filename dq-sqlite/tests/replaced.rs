//! A file that is deleted, moved or replaced while the store is open.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{self, Fixture, assert_kind, claim, open_store, queue, stats};
use dq_core::{Backend, Due, Error, ErrorKind, Result, Scheduled};
use dq_sqlite::SqliteBackend;
use dq_sqlite::rusqlite::{Connection, TransactionBehavior};

async fn schedule(fixture: &Fixture, backend: &SqliteBackend) -> Result<Vec<Scheduled>> {
    backend.schedule(vec![fixture.job(Due::NOW)]).await
}

fn assert_names_file_and_remedy(error: &Error, path: &Path) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(error.message().contains(name), "{error}");
    assert!(error.remedy_text().is_some_and(|remedy| remedy.contains("restart")), "{error}");
}

#[tokio::test]
async fn calls_fail_while_the_file_is_gone_and_succeed_once_it_is_back() {
    let (fixture, backend) = open_store().await;
    let _ = schedule(&fixture, &backend).await.unwrap();
    assert_eq!(stats(&backend).await.ready, 1);
    let elsewhere = fixture.dir.path().join("elsewhere.db");
    fs::rename(fixture.path(), &elsewhere).unwrap();

    let error = schedule(&fixture, &backend).await.unwrap_err();
    assert_names_file_and_remedy(&error, &fixture.path());
    assert!(error.message().contains("deleted or moved"), "{error}");
    let error = backend.stats(&[queue()]).await.unwrap_err();
    assert_names_file_and_remedy(&error, &fixture.path());
    assert!(common::try_claim(&backend, 1).await.is_err());
    let findings = backend.check().await;
    assert!(findings.iter().any(|finding| finding.code == "sqlite.unreadable"), "{findings:?}");
    assert!(!fixture.path().exists(), "no call creates another file");

    fs::rename(&elsewhere, fixture.path()).unwrap();
    assert_eq!(stats(&backend).await.ready, 1, "the refused job was not stored");
    let _ = schedule(&fixture, &backend).await.unwrap();
    assert_eq!(claim(&backend, 9).await.jobs.len(), 2);
}

#[tokio::test]
async fn calls_fail_while_another_file_has_the_name() {
    let (fixture, backend) = open_store().await;
    let _ = schedule(&fixture, &backend).await.unwrap();
    let own = fixture.dir.path().join("own.db");
    fs::rename(fixture.path(), &own).unwrap();
    for extension in ["db-wal", "db-shm"] {
        fs::rename(fixture.path().with_extension(extension), own.with_extension(extension))
            .unwrap();
    }
    let refused = async || {
        let error = schedule(&fixture, &backend).await.unwrap_err();
        assert_names_file_and_remedy(&error, &fixture.path());
        assert!(error.message().contains("replaced"), "{error}");
        let error = backend.stats(&[queue()]).await.unwrap_err();
        assert_names_file_and_remedy(&error, &fixture.path());
    };

    let other = fixture.open().await;
    refused().await;
    assert_eq!(stats(&other).await.stored(), 0, "nothing is written to another store");
    other.close().await.unwrap();

    // A copy has the same store id, but is another file.
    fs::remove_file(fixture.path()).unwrap();
    fs::copy(&own, fixture.path()).unwrap();
    refused().await;
}

#[tokio::test]
async fn a_store_is_not_created_again_after_a_failed_commit() {
    let (fixture, backend) = open_store().await;
    let _ = schedule(&fixture, &backend).await.unwrap();
    common::fail_commits(&fixture, "INSERT ON dq_job");
    assert_kind(schedule(&fixture, &backend).await, ErrorKind::OutcomeUnknown);
    let elsewhere = fixture.dir.path().join("elsewhere.db");
    fs::rename(fixture.path(), &elsewhere).unwrap();

    let error = schedule(&fixture, &backend).await.unwrap_err();
    assert_names_file_and_remedy(&error, &fixture.path());
    assert!(!fixture.path().exists(), "no call creates another file");

    fs::rename(&elsewhere, fixture.path()).unwrap();
    common::let_commits_succeed(&fixture);
    let _ = schedule(&fixture, &backend).await.unwrap();
    assert_eq!(stats(&backend).await.ready, 2);
}

/// Copies the store to another file, as a backup.
fn copy(fixture: &Fixture) -> PathBuf {
    let copy = fixture.dir.path().join("copy.db");
    let conn = fixture.conn();
    conn.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    Connection::open(&copy).unwrap().pragma_update(None, "journal_mode", "WAL").unwrap();
    copy
}

#[tokio::test]
async fn a_transaction_in_another_file_is_refused() {
    let (fixture, backend) = open_store().await;
    let _ = schedule(&fixture, &backend).await.unwrap();
    let (other, _store) = open_store().await;
    let copy = Connection::open(copy(&fixture)).unwrap();
    for mut conn in [Connection::open_in_memory().unwrap(), other.conn(), copy] {
        for behavior in [TransactionBehavior::Immediate, TransactionBehavior::Deferred] {
            let transaction = conn.transaction_with_behavior(behavior).unwrap();
            let error = backend.schedule_in(&transaction, vec![fixture.job(Due::NOW)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.message().contains("another file"), "{error}");
        }
    }
    let mut conn = fixture.conn();
    let transaction = conn.transaction().unwrap();
    for _ in 0..2 {
        let scheduled = backend.schedule_in(&transaction, vec![fixture.job(Due::NOW)]).unwrap();
        assert!(matches!(scheduled[..], [Scheduled::Created(_)]));
    }
    transaction.commit().unwrap();
    assert_eq!(stats(&backend).await.stored(), 3);
}

#[tokio::test]
async fn jobs_of_the_callers_transaction_are_refused_while_the_file_is_gone() {
    let (fixture, backend) = open_store().await;
    let mut conn = fixture.conn();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    fs::remove_file(fixture.path()).unwrap();
    let error = backend.schedule_in(&transaction, vec![fixture.job(Due::NOW)]).unwrap_err();
    assert_names_file_and_remedy(&error, &fixture.path());
}
