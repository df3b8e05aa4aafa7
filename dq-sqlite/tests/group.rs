//! Calls that share a transaction, and must not notice.

mod common;

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use common::{Bed, Dam, MINUTE, claim, stats};
use dq_core::{Backend, Claimed, Clock, Due, ErrorKind, NewJob, Renewal, Renewed, Scheduled};
use dq_sqlite::SqliteBackend;
use dq_sqlite::rusqlite::Connection;
use tokio::task::JoinHandle;

type Call<T> = JoinHandle<dq_core::Result<T>>;

/// Sends a call on its way: it is in the writer's channel when this returns.
async fn send(backend: &Arc<SqliteBackend>, jobs: Vec<NewJob>) -> Call<Vec<Scheduled>> {
    let backend = Arc::clone(backend);
    let call = tokio::spawn(async move { backend.schedule(jobs).await });
    // The tests' runtime has one thread: the call runs until it waits for its answer.
    tokio::task::yield_now().await;
    call
}

/// The same for a claim of one job.
async fn send_claim(backend: &Arc<SqliteBackend>) -> Call<Claimed> {
    let backend = Arc::clone(backend);
    let call = tokio::spawn(async move { common::try_claim(&*backend, 1).await });
    tokio::task::yield_now().await;
    call
}

/// Transactions in the log: frames whose header gives the size of the file after a commit.
fn commits(bed: &Bed) -> usize {
    const HEADER: usize = 32;
    const FRAME: usize = 24 + 4_096;
    let log = fs::read(bed.dir.path().join("jobs.db-wal")).unwrap();
    log[HEADER..].chunks_exact(FRAME).filter(|frame| frame[4..8] != [0; 4]).count()
}

#[tokio::test]
async fn calls_that_wait_together_are_committed_together() {
    let bed = Bed::new();
    let backend = Arc::new(bed.open().await);
    let before = commits(&bed);
    let dam = Dam::close(&bed);
    let mut calls = Vec::new();
    for _ in 0..100 {
        calls.push(send(&backend, vec![bed.job(Due::NOW)]).await);
    }
    dam.open();
    for call in calls {
        assert!(call.await.unwrap().unwrap()[0].is_stored());
    }
    let groups = commits(&bed) - before;
    // The first may have been alone when the writer took it; all others waited behind the dam.
    assert!((1..=2).contains(&groups), "{groups} commits for 100 calls");
    assert_eq!(stats(&*backend).await.ready, 100);
}

#[tokio::test]
async fn a_rejected_duplicate_does_not_fail_its_neighbours() {
    let bed = Bed::new();
    let backend = Arc::new(bed.open().await);
    let dam = Dam::close(&bed);
    let first = bed.keyed("k", Due::NOW);
    let mut calls = vec![send(&backend, vec![first.clone()]).await];
    for n in 0..20 {
        let job = if n % 2 == 0 { bed.keyed("k", Due::NOW) } else { bed.job(Due::NOW) };
        calls.push(send(&backend, vec![job]).await);
    }
    dam.open();
    for (n, call) in calls.into_iter().enumerate() {
        let answer = call.await.unwrap().unwrap()[0];
        if n % 2 == 1 {
            assert!(matches!(answer, Scheduled::Kept(kept) if kept.id == first.id));
        } else {
            assert!(matches!(answer, Scheduled::Created(_)));
        }
    }
    assert_eq!(stats(&*backend).await.ready, 11);
}

#[tokio::test]
async fn a_bulk_that_does_not_fit_fails_alone_and_whole() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.size_limit_mib = Some(1);
    let backend = Arc::new(SqliteBackend::open(&config, &bed.environment()).await.unwrap());
    let dam = Dam::close(&bed);
    let large = || NewJob { payload: Bytes::from(vec![7; 4_000]), ..bed.job(Due::NOW) };
    let opener = send(&backend, vec![bed.job(Due::NOW)]).await;
    let before = send(&backend, vec![bed.job(Due::NOW)]).await;
    let bulk = send(&backend, (0..1_000).map(|_| large()).collect()).await;
    let after = send(&backend, vec![bed.job(Due::NOW)]).await;
    dam.open();
    for call in [opener, before, after] {
        assert!(call.await.unwrap().unwrap()[0].is_stored());
    }
    assert_eq!(bulk.await.unwrap().unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(stats(&*backend).await.ready, 3);
}

#[tokio::test]
async fn a_long_bulk_is_stored_in_chunks_in_order() {
    let bed = Bed::new();
    let backend = bed.open().await;
    let before = commits(&bed);
    let jobs: Vec<NewJob> = (0..2_500).map(|_| bed.job(Due::NOW)).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let answers = backend.schedule(jobs).await.unwrap();
    assert_eq!(answers.iter().map(Scheduled::id).collect::<Vec<_>>(), ids);
    assert_eq!(commits(&bed) - before, 3);
    assert!(backend.schedule(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_failed_commit_is_the_failure_of_all_and_the_store_recovers() {
    let bed = Bed::new();
    let backend = Arc::new(bed.open().await);
    let saboteur = Connection::open(bed.path()).unwrap();
    // A foreign key that is looked at only when the transaction ends, and then dangles.
    saboteur
        .execute_batch(
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER dangle AFTER INSERT ON dq_job BEGIN INSERT INTO child VALUES (1); END",
        )
        .unwrap();
    let dam = Dam::close(&bed);
    let jobs: Vec<NewJob> = (0..3).map(|_| bed.job(Due::NOW)).collect();
    let mut calls = Vec::new();
    for job in &jobs {
        calls.push(send(&backend, vec![job.clone()]).await);
    }
    dam.open();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        assert!(error.is_retryable());
    }
    saboteur.execute_batch("DROP TRIGGER dangle").unwrap();
    let answers = backend.schedule(jobs).await.unwrap();
    assert!(answers.iter().all(Scheduled::is_stored), "{answers:?}");
    assert_eq!(stats(&*backend).await.ready, 3);
}

#[tokio::test]
async fn a_claim_that_was_undone_gives_no_lease_of_others_back() {
    let bed = Bed::new();
    let (backend, brake) = bed.open_with_brake().await;
    let backend = Arc::new(backend);
    let _ = backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap();
    bed.forbid("poison");
    brake.hold();
    let opener = send(&backend, vec![bed.job(MINUTE)]).await;
    brake.holds(1).await;
    let undone = send_claim(&backend).await;
    let poison = NewJob { payload: Bytes::from_static(b"poison"), ..bed.job(MINUTE) };
    let poison = send(&backend, vec![poison]).await;
    // In the transaction after the failed one, where the same token is given out again.
    let next = send_claim(&backend).await;
    brake.release();
    opener.await.unwrap().unwrap();
    poison.await.unwrap().unwrap_err();
    undone.await.unwrap().unwrap_err();
    let held = next.await.unwrap().unwrap().jobs.remove(0);
    assert!(claim(&*backend, 1).await.jobs.is_empty(), "one lease at a time");
    let renewal = Renewal { lease: held.lease(), lease_for: MINUTE };
    let renewed = backend.renew(&[renewal]).await.unwrap();
    assert_eq!(renewed, [Renewed::Until(bed.clock.now() + MINUTE)]);
}

#[tokio::test]
async fn who_shares_a_transaction_with_a_failing_call_may_repeat_his_own() {
    let bed = Bed::new();
    let (backend, brake) = bed.open_with_brake().await;
    let backend = Arc::new(backend);
    bed.forbid("poison");
    brake.hold();
    let opener = send(&backend, vec![bed.job(Due::NOW)]).await;
    brake.holds(1).await;
    let innocent = bed.job(Due::NOW);
    let before = send(&backend, vec![innocent.clone()]).await;
    let poison = NewJob { payload: Bytes::from_static(b"poison"), ..bed.job(Due::NOW) };
    let poison = send(&backend, vec![poison]).await;
    let after = send(&backend, vec![bed.job(Due::NOW)]).await;
    brake.release();
    opener.await.unwrap().unwrap();
    let error = poison.await.unwrap().unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    let error = before.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.remedy_text().is_some());
    assert!(after.await.unwrap().unwrap()[0].is_stored());
    assert!(backend.schedule(vec![innocent]).await.unwrap()[0].is_stored());
    assert_eq!(stats(&*backend).await.ready, 3);
}
