//! Under an old snapshot, in which dead rows cannot be removed, calls stay as fast.

use std::time::{Duration, Instant};

use dq_core::{Backend, Flow, Operation, Timestamp, Verdict};
use dq_postgres::PostgresBackend;

use crate::common::{claim, client, connect, connect_schema, database, job, queue, settle};

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

/// Without bounds on
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
    expect_equal_times(&used, &fresh).await;
    snapshot.batch_execute("COMMIT").await.unwrap();
}

/// Compares a used store with a fresh one by turns, so that other load slows both.
async fn expect_equal_times(used: &PostgresBackend, fresh: &PostgresBackend) {
    let (mut used_times, mut fresh_times) = (Vec::new(), Vec::new());
    for _ in 0..COMPARED {
        used_times.push(round(used).await);
        fresh_times.push(round(fresh).await);
    }
    let (used_time, fresh_time) = (median(&used_times), median(&fresh_times));
    println!("a round of {BATCH} takes {used_time:?}, in a fresh store {fresh_time:?}");
    assert!(
        used_time.as_secs_f64() <= fresh_time.as_secs_f64() * 1.5,
        "a round takes {used_time:?}, in a fresh store {fresh_time:?}"
    );
}

/// Else each claim at a rate would read the state after all earlier ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_passes_jobs_as_quickly_under_an_old_snapshot() {
    let url = database().await;
    let (used, fresh) = (connect(&url).await, connect_schema(&url, "fresh").await);
    for backend in [&used, &fresh] {
        let flow = Flow::UNLIMITED.rate("10000/1s burst 10000".parse().unwrap());
        backend.operate(Operation::DeclareFlow { queue: &queue(), flow }).await.unwrap();
        store(backend, COMPARED * BATCH).await;
    }
    let (snapshot, caller) = (client(&url).await, client(&url).await);
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM dq.job";
    snapshot.batch_execute(hold).await.unwrap();
    let claims = "INSERT INTO dq.gate SELECT q, n, 0, '{}', '{}', 0, 0, '', 0 FROM dq.queue, generate_series(1, 100000) n;
        SELECT dq.trim_gates()";
    caller.batch_execute(claims).await.unwrap();
    expect_equal_times(&used, &fresh).await;
    snapshot.batch_execute("COMMIT").await.unwrap();
}

/// Else each trim would read all entries that an old snapshot keeps.
#[tokio::test]
async fn trims_remove_what_is_beyond_the_limit_and_go_on_where_they_ended() {
    let url = database().await;
    let _backend = connect(&url).await;
    let client = client(&url).await;
    client
        .batch_execute(
            "SELECT dq.add_queue('orders');
            INSERT INTO dq.job (id, seq, at, due, created, q, state, pinned, payload)
                SELECT gen_random_uuid(), n, 1000 + n, 0, 0, 1, 3, CASE n WHEN 1 THEN 9e15 END, ''::bytea
                    FROM generate_series(1, 5) n
                UNION ALL SELECT gen_random_uuid(), n, 1000 + n, 0, 0, 1, 4, 1000 + n, ''::bytea
                    FROM generate_series(1, 5) n",
        )
        .await
        .unwrap();
    let trim = async |call: &str| -> (i64, bool) {
        let sql = format!("SELECT next_at, more FROM dq.{call}");
        let row = client.query_one(&sql, &[]).await.unwrap();
        (row.get(0), row.get(1))
    };
    let states = async || -> Vec<i64> {
        let sql = "SELECT count(id) FROM generate_series(3, 4) s LEFT JOIN dq.job ON state = s
            GROUP BY s ORDER BY s";
        client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(trim("trim_history('orders', 0, 3)").await, (1003, true));
    assert_eq!(states().await, [2, 6], "one of the three stays pinned");
    assert_eq!(trim("remove_pins('orders', 0, 5)").await, (1005, true));
    assert_eq!(states().await, [2, 1]);
    let near = |(next, more): (i64, bool), now: i64| !more && (now - 300_000..now).contains(&next);
    for call in ["trim_history('orders', 1003, 3)", "remove_pins('orders', 1005, 3)"] {
        let trimmed = trim(call).await;
        let now = client.query_one("SELECT dq.now_ms()", &[]).await.unwrap().get(0);
        assert!(near(trimmed, now), "{call}: {trimmed:?} at {now}");
    }
    assert_eq!(states().await, [0, 1], "the pinned one is left");
}

/// A caller's transaction that holds an unpinned row stops nobody.
#[tokio::test]
async fn a_locked_pin_is_passed_over() {
    let url = database().await;
    let _backend = connect(&url).await;
    let (holder, trimmer) = (client(&url).await, client(&url).await);
    holder
        .batch_execute(
            "SELECT dq.add_queue('orders');
            INSERT INTO dq.job (id, seq, at, due, created, q, state, payload)
                SELECT gen_random_uuid(), n, n, 0, 0, 1, 4, '' FROM generate_series(1, 3) n",
        )
        .await
        .unwrap();
    let lock_one = "BEGIN; SELECT FROM dq.job WHERE seq = 2 FOR UPDATE";
    holder.batch_execute(lock_one).await.unwrap();
    let trim = "SELECT dq.remove_pins('orders', 0, 9)";
    let left = "SELECT count(*) FROM dq.job";
    trimmer.batch_execute(trim).await.unwrap();
    assert_eq!(trimmer.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 1);
    holder.batch_execute("COMMIT").await.unwrap();
    trimmer.batch_execute(trim).await.unwrap();
    assert_eq!(trimmer.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
}
