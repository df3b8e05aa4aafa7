//! Writes beside another connection that holds the write lock most of the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Fixture, MINUTE, WriteLock, claim, open_store};
use dq_core::{Backend, Due, NewJob, Renewal, Renewed, Settled, Settlement, Verdict};
use dq_sqlite::rusqlite::Connection;
use tokio::sync::mpsc::unbounded_channel;

/// SQLite's own handler sleeps for 100 ms after its first tries, a third of the period: it finds
/// the lock taken each time.
const HELD: Duration = Duration::from_millis(280);

const FREE: Duration = Duration::from_millis(20);

/// Holds the write lock except for short gaps, until told to stop. Returns the number of gaps.
fn write_most_of_the_time(conn: &Connection, stop: &AtomicBool) -> usize {
    conn.busy_timeout(MINUTE).unwrap();
    for gaps in 0.. {
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        std::thread::sleep(HELD);
        conn.execute_batch("COMMIT").unwrap();
        if stop.load(Ordering::SeqCst) {
            return gaps;
        }
        std::thread::sleep(FREE);
    }
    unreachable!("the loop has no end")
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_and_settlements_find_the_short_gaps_of_a_busy_writer() {
    const RENEWALS: usize = 4;
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.busy_timeout = 10 * MINUTE).await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let lease = claim(&backend, 1).await.jobs.remove(0).lease();

    let (conn, stop) = (fixture.conn(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let busy = std::thread::spawn(move || write_most_of_the_time(&conn, &stopped));
    for _ in 0..RENEWALS {
        let renewed = backend.renew(&[Renewal::new(lease.clone(), MINUTE)]).await.unwrap();
        assert!(matches!(renewed[..], [Renewed::Until(_)]));
        tokio::time::sleep(FREE).await;
    }
    let settlement = Settlement::new(lease, Verdict::Done);
    assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
    stop.store(true, Ordering::SeqCst);
    let gaps = busy.join().unwrap();
    // A machine may wake a thread too late for some gaps, but not for one after another.
    assert!(gaps <= 5 * RENEWALS, "{RENEWALS} renewals and a settlement took {gaps} gaps");
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Schedule,
    Renewal,
}

#[tokio::test]
async fn a_renewal_that_arrives_last_passes_long_batches_that_wait_for_the_lock() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let lease = claim(&*backend, 1).await.jobs.remove(0).lease();

    let lock = WriteLock::acquire(&fixture);
    let (ended, mut ends) = unbounded_channel();
    for _ in 0..3 {
        let jobs: Vec<NewJob> = (0..1_000).map(|_| fixture.job(Due::NOW)).collect();
        let (backend, ended) = (Arc::clone(&backend), ended.clone());
        tokio::spawn(async move {
            assert_eq!(backend.schedule(jobs).await.unwrap().len(), 1_000);
            ended.send(Ended::Schedule).unwrap();
        });
        tokio::task::yield_now().await;
    }
    let renewing = Arc::clone(&backend);
    tokio::spawn(async move {
        let renewed = renewing.renew(&[Renewal::new(lease, MINUTE)]).await.unwrap();
        assert!(matches!(renewed[..], [Renewed::Until(_)]));
        ended.send(Ended::Renewal).unwrap();
    });
    tokio::task::yield_now().await;
    lock.release();
    assert_eq!(ends.recv().await, Some(Ended::Renewal));
    for _ in 0..3 {
        assert_eq!(ends.recv().await, Some(Ended::Schedule));
    }
}
