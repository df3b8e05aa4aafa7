//! Under an old snapshot, in which dead rows cannot be removed, calls stay as fast.

use std::time::{Duration, Instant};

use dq_core::{Backend, Timestamp, Verdict};

use crate::common::{claim, client, connect, database, job, settle};

const JOBS: usize = 100_000;

const BATCH: usize = 100;

/// Claims and settles a batch, and returns how long that took.
async fn round(backend: &dq_postgres::PostgresBackend) -> Duration {
    let start = Instant::now();
    let claimed = claim(backend, BATCH).await;
    assert_eq!(claimed.jobs.len(), BATCH);
    settle(backend, &claimed.jobs, Verdict::Done).await;
    start.elapsed()
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The bound is 1.5 on a quiet machine. Without bounds on claims, or if settlements read the index of
/// leases, the ratio is above 5.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_pass_as_quickly_under_an_old_snapshot() {
    let url = database().await;
    let backend = connect(&url).await;
    let due = Timestamp::from_millis(1_700_000_000_000);
    for _ in 0..JOBS / 1_000 {
        let jobs = (0..1_000).map(|_| job(due)).collect();
        backend.schedule(jobs).await.unwrap();
    }
    let snapshot = client(&url).await;
    snapshot
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dq.job")
        .await
        .unwrap();
    let mut times = Vec::new();
    for _ in 0..JOBS / BATCH {
        times.push(round(&backend).await);
    }
    let (first, last) = (median(&times[..100]), median(&times[times.len() - 100..]));
    println!("a round of {BATCH} took {first:?} at first and {last:?} at last");
    assert!(last <= first * 2, "a round took {first:?} at first and {last:?} at last");
    snapshot.batch_execute("COMMIT").await.unwrap();
}
