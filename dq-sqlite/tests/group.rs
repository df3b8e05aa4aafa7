//! Group commit: calls that share a transaction do not affect each other.

use std::fs;
use std::sync::Arc;

use crate::common::{self, Fixture, WriteLock, claim, open_store, stats};
use bytes::Bytes;
use dq_core::{
    Backend, DeadKind, DeadReason, Due, ErrorKind, LeasedJob, NewJob, Operation, Scheduled,
    Settlement, Verdict,
};
use dq_sqlite::SqliteBackend;
use tokio::task::JoinHandle;

type Call<T> = JoinHandle<dq_core::Result<T>>;

/// Spawns a call; it is in the writer's channel on return.
async fn send(backend: &Arc<SqliteBackend>, jobs: Vec<NewJob>) -> Call<Vec<Scheduled>> {
    let backend = Arc::clone(backend);
    let call = tokio::spawn(async move { backend.schedule(jobs).await });
    // The runtime has one thread: the call runs until it waits for its reply.
    tokio::task::yield_now().await;
    call
}

/// Counts transactions in the write-ahead log. The log has a header, then frames with a header and
/// a page each. Bytes 4 to 8 in a frame's header are zero, except in a transaction's last frame.
fn commits(fixture: &Fixture) -> usize {
    const LOG_HEADER: usize = 32;
    const FRAME: usize = 24 + 4_096;
    let log = fs::read(fixture.dir.path().join("jobs.db-wal")).unwrap();
    log[LOG_HEADER..].chunks_exact(FRAME).filter(|frame| frame[4..8] != [0; 4]).count()
}

#[tokio::test]
async fn waiting_calls_are_committed_together() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    let before = commits(&fixture);
    let lock = WriteLock::acquire(&fixture);
    let mut calls = Vec::new();
    for _ in 0..100 {
        calls.push(send(&backend, vec![fixture.job(Due::NOW)]).await);
    }
    lock.release();
    for call in calls {
        assert!(call.await.unwrap().unwrap()[0].is_stored());
    }
    let groups = commits(&fixture) - before;
    // The writer may have taken the first call alone; all others waited for the lock.
    assert!((1..=2).contains(&groups), "{groups} commits for 100 calls");
    assert_eq!(stats(&*backend).await.ready, 100);
}

#[tokio::test]
async fn a_batch_that_does_not_fit_on_the_disk_fails_alone_and_entirely() {
    let fixture = Fixture::new();
    let backend = Arc::new(fixture.open_with(|config| config.size_limit_mib = Some(1)).await);
    let lock = WriteLock::acquire(&fixture);
    let large = || fixture.job(Due::NOW).payload(Bytes::from(vec![7; 4_000]));
    let first_call = send(&backend, vec![fixture.job(Due::NOW)]).await;
    let before = send(&backend, vec![fixture.job(Due::NOW)]).await;
    let batch = send(&backend, (0..1_000).map(|_| large()).collect()).await;
    let after = send(&backend, vec![fixture.job(Due::NOW)]).await;
    lock.release();
    for call in [first_call, before, after] {
        assert!(call.await.unwrap().unwrap()[0].is_stored());
    }
    assert_eq!(batch.await.unwrap().unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(stats(&*backend).await.ready, 3);
}

#[tokio::test]
async fn a_long_batch_is_stored_in_chunks_in_order() {
    let (fixture, backend) = open_store().await;
    let before = commits(&fixture);
    let jobs: Vec<NewJob> = (0..2_500).map(|_| fixture.job(Due::NOW)).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let scheduled = backend.schedule(jobs).await.unwrap();
    assert_eq!(scheduled.iter().map(Scheduled::id).collect::<Vec<_>>(), ids);
    assert_eq!(commits(&fixture) - before, 3);
    assert!(backend.schedule(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn one_call_purges_a_limited_number_of_jobs_in_short_transactions() {
    let (fixture, backend) = open_store().await;
    let _ = backend.schedule((0..2_000).map(|_| fixture.job(Due::NOW)).collect()).await.unwrap();
    let dead = |job: &LeasedJob| {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        Settlement::new(job.lease(), Verdict::Dead { reason, failed: true })
    };
    let settlements: Vec<_> = claim(&backend, 500).await.jobs.iter().map(dead).collect();
    backend.settle(&settlements).await.unwrap();
    let queue = common::queue();
    let before = commits(&fixture);
    let mut reports = Vec::new();
    for _ in 0..3 {
        let report = backend.operate(Operation::Purge { queue: &queue }).await.unwrap();
        reports.push((report.affected, report.more));
    }
    assert_eq!(reports, [(1_000, true), (1_000, false), (0, false)]);
    let steps = commits(&fixture) - before;
    assert!(steps >= 4, "{steps} transactions for 2,000 jobs");
    assert_eq!(stats(&backend).await.stored(), 0);
}

#[tokio::test]
async fn a_call_that_fails_after_a_part_of_it_was_committed_has_an_unknown_outcome() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.size_limit_mib = Some(8)).await;
    let _ = backend.schedule((0..4).map(|_| fixture.job(Due::NOW)).collect()).await.unwrap();
    let payload = Bytes::from(vec![7; 2 << 20]);
    let again = |job: &LeasedJob| {
        Settlement::new(job.lease(), Verdict::Again { due: Due::NOW, payload: payload.clone() })
    };
    let settlements: Vec<_> = claim(&backend, 4).await.jobs.iter().map(again).collect();
    // Two payloads fill a transaction, and the next two do not fit in the file.
    let error = backend.settle(&settlements).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.message().contains("full"), "{error}");
    assert_eq!((stats(&backend).await.ready, stats(&backend).await.running), (2, 2));
    common::assert_kind(backend.settle(&settlements[2..]).await, ErrorKind::Full);
}

#[tokio::test]
async fn a_failed_commit_fails_all_its_calls_and_the_store_recovers() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    common::fail_commits(&fixture, "INSERT ON dq_job");
    let lock = WriteLock::acquire(&fixture);
    let jobs: Vec<NewJob> = (0..3).map(|_| fixture.job(Due::NOW)).collect();
    let mut calls = Vec::new();
    for job in &jobs {
        calls.push(send(&backend, vec![job.clone()]).await);
    }
    lock.release();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        assert!(error.is_retryable());
    }
    common::let_commits_succeed(&fixture);
    let scheduled = backend.schedule(jobs).await.unwrap();
    assert!(scheduled.iter().all(Scheduled::is_stored), "{scheduled:?}");
    assert_eq!(stats(&*backend).await.ready, 3);
}

#[tokio::test]
async fn calls_that_share_a_transaction_with_a_failing_call_get_a_retryable_error() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    fixture.reject_payload("poison");
    let lock = WriteLock::acquire(&fixture);
    let valid = fixture.job(Due::NOW);
    let before = send(&backend, vec![valid.clone()]).await;
    let poison = fixture.job(Due::NOW).payload(Bytes::from_static(b"poison"));
    let failing = send(&backend, vec![poison]).await;
    let after = send(&backend, vec![fixture.job(Due::NOW)]).await;
    lock.release();
    let error = failing.await.unwrap().unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    let error = before.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.remedy_text().is_some());
    assert!(after.await.unwrap().unwrap()[0].is_stored());
    assert!(backend.schedule(vec![valid]).await.unwrap()[0].is_stored());
    assert_eq!(stats(&*backend).await.ready, 2);
}
