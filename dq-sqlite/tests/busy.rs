//! Writes beside another connection that holds the write lock most of the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{Fixture, MINUTE, WriteLock, claim, open_store};
use dq_core::{Backend, Due, NewJob, Renewal, Renewed, Settled, Settlement, Verdict};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// SQLite's own handler sleeps for 100 ms after its first tries, a third of [`BusyWriter`]'s
/// period: it would find the lock taken each time.
const HELD: Duration = Duration::from_millis(280);

const FREE: Duration = Duration::from_millis(20);

struct BusyWriter {
    /// The gap count so far, sent whenever the lock is taken again.
    taken: UnboundedReceiver<usize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl BusyWriter {
    fn start(fixture: &Fixture) -> Self {
        let conn = fixture.conn();
        conn.busy_timeout(MINUTE).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (takes, taken) = unbounded_channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for gaps in 0.. {
                conn.execute_batch("BEGIN IMMEDIATE").unwrap();
                let _ = takes.send(gaps);
                std::thread::sleep(HELD);
                conn.execute_batch("COMMIT").unwrap();
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(FREE);
            }
        });
        Self { taken, stop, thread }
    }

    /// Waits until the lock is taken again; returns the gap count so far.
    async fn next_taken(&mut self) -> usize {
        while self.taken.try_recv().is_ok() {}
        self.taken.recv().await.unwrap()
    }

    fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_and_settlements_find_the_short_gaps_of_a_busy_writer() {
    const CALLS: usize = 4;
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.busy_timeout = 10 * MINUTE).await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let lease = claim(&backend, 1).await.jobs.remove(0).lease();

    let mut writer = BusyWriter::start(&fixture);
    let mut missed = 0;
    for call in 1..=CALLS {
        let before = writer.next_taken().await;
        if call < CALLS {
            let renewed = backend.renew(&[Renewal::new(lease.clone(), MINUTE)]).await.unwrap();
            assert!(matches!(renewed[..], [Renewed::Until(_)]));
        } else {
            let settlement = Settlement::new(lease.clone(), Verdict::Done);
            assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
        }
        missed += writer.next_taken().await - before - 1;
    }
    writer.stop();
    // A machine may wake a thread too late for one gap, but not for one after another.
    assert!(missed <= 2 * CALLS, "{CALLS} calls missed {missed} gaps");
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
