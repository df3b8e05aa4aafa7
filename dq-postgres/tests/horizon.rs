//! Under an old snapshot, in which dead rows cannot be removed, calls stay as fast.

use std::time::{Duration, Instant};

use dq_core::{Backend, Timestamp, Verdict};
use dq_postgres::PostgresBackend;

use crate::common::{claim, client, connect, connect_schema, database, job, settle};

const JOBS: usize = 100_000;

const BATCH: usize = 100;

/// Rounds to compare.
const COMPARED: usize = 100;

/// Claims and settles a batch, and returns how long that took.
async fn round(backend: &PostgresBackend) -> Duration {
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

async fn store(backend: &PostgresBackend, jobs: usize) {
    let due = Timestamp::from_millis(1_700_000_000_000);
    for _ in 0..jobs / 1_000 {
        backend.schedule((0..1_000).map(|_| job(due)).collect()).await.unwrap();
    }
}

/// Compares a used store with a fresh one by turns, so that other load slows both. Without bounds on
/// claims, or if settlements read the index of leases, the ratio is above 5.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_pass_as_quickly_under_an_old_snapshot() {
    let url = database().await;
    let used = connect(&url).await;
    store(&used, JOBS).await;
    let snapshot = client(&url).await;
    snapshot
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dq.job")
        .await
        .unwrap();
    for _ in 0..(JOBS - COMPARED * BATCH) / BATCH {
        round(&used).await;
    }
    let fresh = connect_schema(&url, "fresh").await;
    store(&fresh, COMPARED * BATCH).await;
    let (mut used_times, mut fresh_times) = (Vec::new(), Vec::new());
    for _ in 0..COMPARED {
        used_times.push(round(&used).await);
        fresh_times.push(round(&fresh).await);
    }
    let (used_time, fresh_time) = (median(&used_times), median(&fresh_times));
    println!("a round of {BATCH} takes {used_time:?}, in a fresh store {fresh_time:?}");
    assert!(
        used_time.as_secs_f64() <= fresh_time.as_secs_f64() * 1.5,
        "a round takes {used_time:?}, in a fresh store {fresh_time:?}"
    );
    snapshot.batch_execute("COMMIT").await.unwrap();
}

/// Else each trim would read all entries that an old snapshot keeps.
#[tokio::test]
async fn trims_that_remove_nothing_go_on_near_the_present() {
    let url = database().await;
    store(&connect(&url).await, 1_000).await;
    let client = client(&url).await;
    for trim in ["trim_history", "remove_pins"] {
        let day = "extract(epoch FROM interval '1 day 2 minutes') * 1000";
        let sql = format!(
            "SELECT dq.{trim}('orders', '-9223372036854775808') > dq.now_ms() - {day},
                dq.{trim}('orders', null) < dq.now_ms() - 50000"
        );
        let row = client.query_one(&sql, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), (true, true), "{trim}");
    }
}
