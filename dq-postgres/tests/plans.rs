//! Plans: all functions find jobs by an index, whatever the size of the table when they were
//! planned, and without compiling, which takes seconds.

use dq_core::{Backend, BrowseParams, JobState, Timestamp};

use crate::common::{client, connect, database, job, queue};

/// Each is called with `FOUND` for one of the jobs.
const CALLS: [&str; 10] = [
    "SELECT dq.store_job(id, 'orders', key, 0, true, 1, false, 1, 1, '', payload), \
     dq.store_job(gen_random_uuid(), 'orders', key, 0, true, 1, false, 1, 1, '', payload), \
     dq.store_new(ARRAY[id], 'orders', ARRAY[0], true, null, null, null, ARRAY[payload]) FROM FOUND",
    "SELECT dq.store(ARRAY[id, gen_random_uuid()], ARRAY['orders', 'orders'], ARRAY[key, key], \
     ARRAY[0, 0], ARRAY[true, true], ARRAY[1, 1], ARRAY[false, false], ARRAY[1::bigint, 1], \
     ARRAY[1::bigint, 1], ARRAY['', ''], ARRAY[payload, payload]) FROM FOUND",
    "SELECT dq.cancel_jobs(ARRAY['orders', 'orders'], ARRAY[null, id], ARRAY[key, null]) FROM FOUND",
    "SELECT dq.reschedule_jobs(ARRAY['orders'], ARRAY[id], ARRAY[null], ARRAY[0], ARRAY[true]) \
     FROM FOUND",
    "SELECT dq.claim(ARRAY['orders', 'others'], ARRAY[5, 5], ARRAY[1000, 1000], 10, 'test', \
     ARRAY[0, 0]::bigint[], ARRAY[0, 0]::bigint[], ARRAY[0, 0]::bigint[], ARRAY[0, 0]::bigint[], \
     ARRAY[0, 0]::bigint[], ARRAY[1, 1]::bigint[])",
    "SELECT dq.renew(ARRAY[id], ARRAY[1], ARRAY[1000]) FROM FOUND",
    "SELECT dq.settle(ARRAY[id, id], ARRAY[1, 1], ARRAY[0, 2], ARRAY[0, 0]::bigint[], \
     ARRAY[true, true], ARRAY[true, true], ARRAY['', ''], ARRAY[null, null], \
     ARRAY[null, null]::bytea[]) FROM FOUND",
    "SELECT dq.replay('orders', ARRAY[id], 0, true), dq.remove('orders', ARRAY[id]) FROM FOUND",
    "SELECT dq.purge('others', 10), dq.trim_history('orders', 0, 9), dq.remove_pins('orders', 0, 9)",
    "SELECT dq.in_history(1, 0, 0, 0)",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_function_reads_the_whole_table() {
    let url = database().await;
    let backend = connect(&url).await;
    let found =
        job(Timestamp::from_millis(1_700_000_000_000)).key(dq_core::JobKey::new("k").unwrap());
    let found_row =
        format!("(SELECT '{}'::uuid AS id, 'k' AS key, ''::bytea AS payload) AS found", found.id);
    let client = client(&url).await;
    let limit =
        r#"SELECT dq.add_queue('orders'), dq.limit_queue('orders', false, '{"max_running": 5}')"#;
    client.batch_execute(limit).await.unwrap();
    let read_whole_table = async |call: &str| -> i64 {
        let sql = call.replace("FOUND", &found_row);
        client
            .batch_execute(&format!("BEGIN; {sql}"))
            .await
            .unwrap_or_else(|e| panic!("{call}: {e:?}"));
        let scans =
            "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'dq.job'::regclass";
        let scans = client.query_one(scans, &[]).await.unwrap().get(0);
        client.batch_execute("ROLLBACK").await.unwrap();
        scans
    };
    // The server loads the compiler when it first needs it.
    let compiles = async || -> bool {
        let maps = "SELECT pg_read_file('/proc/self/maps', 0, 10000000, true) LIKE '%llvmjit%'";
        client.query_one(maps, &[]).await.unwrap().get::<_, Option<bool>>(0).unwrap_or_default()
    };
    for jobs in [0, 10, 20_000] {
        let mut new: Vec<_> =
            (0..jobs).map(|_| job(Timestamp::from_millis(1_700_000_000_001))).collect();
        new.push(found.clone());
        for chunk in new.chunks(1_000) {
            backend.schedule(chunk.to_vec()).await.unwrap();
        }
        for call in CALLS {
            assert_eq!(read_whole_table(call).await, 0, "{jobs} jobs: {call}");
            assert!(!compiles().await, "{jobs} jobs: {call}");
        }
        client.batch_execute("ANALYZE").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_scan_is_compiled() {
    let url = database().await;
    let backend = connect(&url).await;
    backend.schedule(vec![job(Timestamp::EPOCH)]).await.unwrap();
    let clock = "CREATE OR REPLACE FUNCTION dq.now_ms() RETURNS bigint LANGUAGE plpgsql AS $$
        BEGIN
            IF current_setting('jit')::boolean THEN RAISE 'may be compiled'; END IF;
            RETURN 1;
        END $$";
    client(&url).await.batch_execute(clock).await.unwrap();
    let compiled = backend.now().await.unwrap_err();
    assert!(compiled.to_string().contains("may be compiled"), "{compiled}");

    assert_eq!(backend.stats(&[queue()]).await.unwrap()[0].ready, 1);
    for state in [JobState::Ready, JobState::Running, JobState::Dead, JobState::Ended] {
        backend.browse(BrowseParams::new(&queue(), state)).await.unwrap();
    }
    let edges = [Timestamp::EPOCH, Timestamp::from_millis(10)];
    assert_eq!(backend.forecast(&queue(), &edges).await.unwrap(), [1]);
}
