//! Limits for all processes: exact in concurrent claims, quick, and kept by older processes.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::Migrated;
use dq_core::{Backend, ClaimParams, Due, Flow, LeasedJob, Rate, Verdict, Want};
use dq_postgres::PostgresBackend;
use dq_servers::shared_postgres;
use dq_testkit::fixture::run_due;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::common::{
    LEASE, claim, claim_as, client, connect, database, declare, job, queue, settle,
};
use crate::schema::migrate;

const LIMIT: u32 = 3;

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

/// Eight claims at once, in many rounds. Returns how many jobs have run.
async fn run_rounds(stores: &[Arc<PostgresBackend>; 2], rounds: usize) -> usize {
    let mut done = 0;
    for round in 0..rounds {
        let mut claims = JoinSet::new();
        for n in 0..8 {
            let store = Arc::clone(&stores[n % 2]);
            claims.spawn(async move { claim_as(&store, 1, &format!("worker-{n}")).await });
        }
        let leased = claims.join_all().await.concat();
        assert!(leased.len() <= LIMIT as usize, "round {round}: {} jobs run", leased.len());
        settle(&stores[0], &leased, Verdict::Done).await;
        done += leased.len();
    }
    done
}

/// In each isolation that a database may have as its default: claims with an old snapshot would
/// count too few leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_claims_of_processes_keep_limit_and_rate() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let url = database().await;
        let name = url.rsplit('/').next().unwrap();
        let setting = format!("ALTER DATABASE {name} SET default_transaction_isolation = ");
        client(&url).await.batch_execute(&format!("{setting} '{isolation}'")).await.unwrap();
        let stores = [Arc::new(connect(&url).await), Arc::new(connect(&url).await)];
        stores[0].schedule((0..200).map(|_| job(Due::NOW)).collect()).await.unwrap();
        declare(&stores[0], Flow::UNLIMITED.max_running(LIMIT)).await;
        let done = run_rounds(&stores, 20).await;
        assert!(done >= 20, "{isolation}: {done} jobs in 20 rounds");
        // The burst, and then one a day.
        declare(&stores[0], Flow::UNLIMITED.rate(rate("1/1day burst 3"))).await;
        assert_eq!(run_rounds(&stores, 5).await, 3, "{isolation}");
    }
}

/// The workers that the server's notifications name.
async fn called_workers(url: &str) -> (Client, mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let (sender, called) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message.unwrap() {
                let worker = notification.payload().rsplit(' ').next().unwrap();
                let _ = sender.send(worker.to_owned());
            }
        }
    });
    client.batch_execute("LISTEN dq").await.unwrap();
    (client, called)
}

/// Another process's place in the line is called, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_calls_the_first_in_the_line() {
    let url = database().await;
    let stores = [connect(&url).await, connect(&url).await];
    declare(&stores[0], Flow::UNLIMITED.max_running(1)).await;
    stores[0].schedule((0..4).map(|_| job(Due::NOW)).collect()).await.unwrap();
    let workers = ["first", "second"];
    let mut wakeups = Vec::new();
    for (store, worker) in stores.iter().zip(workers) {
        wakeups.push(store.listen(&[queue()], worker).await.unwrap());
    }
    let leased = claim(&stores[0], 1).await.jobs;
    for (store, worker) in stores.iter().zip(workers) {
        assert!(claim_as(store, 2, worker).await.is_empty(), "{worker}");
    }
    let line = client(&url).await;
    let line = line.query_one("SELECT line FROM dq.gate ORDER BY n DESC LIMIT 1", &[]).await;
    assert_eq!(line.unwrap().get::<_, Vec<String>>(0), workers);

    let (_listening, mut called) = called_workers(&url).await;
    settle(&stores[0], &leased, Verdict::Done).await;
    assert_eq!(called.recv().await.unwrap(), "first");
    wakeups[0].next().await;
    let leased = claim_as(&stores[0], 2, "first").await;
    assert_eq!(leased.len(), 1);
    settle(&stores[1], &leased, Verdict::Done).await;
    assert_eq!(called.recv().await.unwrap(), "second");
    wakeups[1].next().await;
}

/// Begins a transaction that settles a job.
async fn begin_to_settle(url: &str, leased: &LeasedJob) -> Client {
    let settling = client(url).await;
    let settle = format!(
        "BEGIN; SELECT dq.settle(ARRAY['{}'::uuid], ARRAY[{}::bigint], '{{0}}', null, null, null,
            '{{null}}', null, null)",
        leased.job.id, leased.token.0
    );
    settling.batch_execute(&settle).await.unwrap();
    settling
}

/// Neither settlement sees the other's end, and both leases together were above the limit.
#[tokio::test]
async fn two_settlements_at_once_below_a_lowered_limit_call_a_worker() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.max_running(2)).await;
    backend.schedule((0..3).map(|_| job(Due::NOW)).collect()).await.unwrap();
    let leased = claim(&backend, 2).await.jobs;
    declare(&backend, Flow::UNLIMITED.max_running(1)).await;
    assert!(claim_as(&backend, 1, "other").await.is_empty());
    let (listening, mut called) = called_workers(&url).await;
    let settling =
        [begin_to_settle(&url, &leased[0]).await, begin_to_settle(&url, &leased[1]).await];
    for settling in &settling {
        settling.batch_execute("COMMIT").await.unwrap();
    }
    listening.batch_execute("NOTIFY dq, 'end'").await.unwrap();
    assert_eq!(called.recv().await.unwrap(), "other");
    assert_eq!(claim_as(&backend, 1, "other").await.len(), 1);
}

#[tokio::test]
async fn an_ended_lease_calls_one_worker() {
    let url = database().await;
    let backend = connect(&url).await;
    let flows =
        [Flow::UNLIMITED.max_running(3), Flow::UNLIMITED.max_running(3).group_max_running(3)];
    let mut flows = flows.into_iter();
    let mut next = flows.next();
    for _ in 0..20 {
        let Some(flow) = next else { return };
        declare(&backend, flow).await;
        backend.schedule((0..9).map(|_| job(Due::NOW).group("a")).collect()).await.unwrap();
        let leased = claim(&backend, 3).await.jobs;
        let workers = ["first", "second", "third"];
        for worker in workers.into_iter().chain(["fourth"]) {
            assert!(claim_as(&backend, 1, worker).await.is_empty());
        }
        let (listening, mut called) = called_workers(&url).await;
        let begin = Instant::now();
        for leased in leased {
            settle(&backend, &[leased], Verdict::Done).await;
        }
        for worker in workers {
            assert_eq!(claim_as(&backend, 1, worker).await.len(), 1);
        }
        listening.batch_execute("NOTIFY dq, 'end'").await.unwrap();
        // A worker that does not come for a second is called again.
        if begin.elapsed() < Duration::from_secs(1) {
            for worker in workers.into_iter().chain(["end"]) {
                assert_eq!(called.recv().await.unwrap(), worker);
            }
            next = flows.next();
        }
        client(&url).await.batch_execute("DELETE FROM dq.job; DELETE FROM dq.gate").await.unwrap();
    }
    assert_eq!(next, None, "no round was done within a second");
}

/// Its transaction may be a long one, of a migration.
#[tokio::test]
async fn a_change_of_limits_holds_up_no_other_queue() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.max_running(1)).await;
    backend.schedule(vec![job(Due::NOW)]).await.unwrap();
    let changing = client(&url).await;
    let change = r#"SELECT dq.add_queue('a'), dq.add_queue('b'); BEGIN;
        SELECT dq.limit_queue('a', false, '{"max_running": 1}'), dq.limit_queue('b', true, '{}')"#;
    changing.batch_execute(change).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
}

/// A settlement that is not committed does not see who joins the line, and is not seen.
#[tokio::test]
async fn who_finds_no_room_during_a_settlement_claims_again_soon() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.max_running(1)).await;
    backend.schedule(vec![job(Due::NOW), job(Due::NOW)]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    let settling = begin_to_settle(&url, &leased).await;
    let wants = [Want::new(queue(), 1, LEASE)];
    let meanwhile = backend.claim(ClaimParams::new(&wants, 1, "other")).await.unwrap();
    assert_eq!(meanwhile.jobs.len(), 0);
    let soon = meanwhile.now + Duration::from_millis(10);
    assert_eq!(meanwhile.next_due, Some(soon));
    settling.batch_execute("COMMIT").await.unwrap();
    let leased = claim_as(&backend, 1, "other").await;
    assert_eq!(leased.len(), 1);
    // Without a settlement, only the end of the lease makes room.
    backend.schedule(vec![job(Due::NOW)]).await.unwrap();
    let full = backend.claim(ClaimParams::new(&wants, 1, "third")).await.unwrap();
    assert_eq!(full.next_due, Some(leased[0].leased_until));
}

/// The tables of version 1, with what its processes call.
const VERSION_1: &str = concat!(
    "CREATE SCHEMA dq;",
    include_str!("../src/sql/tables.sql"),
    "UPDATE dq.meta SET functions = 1;
    CREATE FUNCTION dq.claim(text[], integer[], bigint[], integer, text, bigint[], bigint[], bigint[],
        bigint[], bigint[], bigint[]) RETURNS integer LANGUAGE sql AS 'SELECT 1';
    INSERT INTO dq.queue (name, bucket) VALUES ('orders', 1);
    INSERT INTO dq.job (id, seq, at, due, created, q, payload)
        SELECT gen_random_uuid(), n, 0, 0, 0, 1, '' FROM generate_series(1, 9) n"
);

/// A claim by a process of version 1.
const OLD_CLAIM: &str = "SELECT count(id) FROM dq.claim(ARRAY['orders'], ARRAY[9],
    ARRAY[60000::bigint], 9, 'old', ARRAY[null::bigint], ARRAY[0::bigint], ARRAY[null::bigint],
    ARRAY[0::bigint], ARRAY[null::bigint], ARRAY[0::bigint])";

#[tokio::test]
async fn a_store_of_version_1_is_upgraded_and_its_processes_keep_limits() {
    let url = database().await;
    let psql = |sql: &str| shared_postgres().psql(&url, sql).unwrap();
    psql(VERSION_1);
    psql(
        "DO $$ BEGIN CREATE ROLE \"old user\";
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
        GRANT INSERT ON ALL TABLES IN SCHEMA dq TO \"old user\";
        REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA dq FROM PUBLIC;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA dq TO \"old user\"",
    );
    assert_eq!(migrate(&url, None).await, Migrated::Updated);
    let executable = "SELECT string_agg(oid::regprocedure::text, ', ') FROM pg_proc
        WHERE pronamespace = 'dq'::regnamespace
            AND has_function_privilege('old user', oid, 'EXECUTE')";
    let refused = executable.replace("AND has", "AND NOT has");
    assert_eq!(psql(&refused), "", "a function that replaces one keeps its rights");
    assert_eq!(psql(&executable.replace("old user", "pg_monitor")), "", "nobody else has them");
    assert_eq!(psql("SELECT has_table_privilege('old user', 'dq.note', 'DELETE')"), "t");
    assert_eq!(psql("SELECT version FROM dq.meta"), "2");
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.max_running(LIMIT)).await;
    assert_eq!(claim_as(&backend, 2, "new").await.len(), 2);
    assert_eq!(psql(OLD_CLAIM), "1");
    declare(&backend, Flow::UNLIMITED).await;
    assert_eq!(run_due(&backend, "orders").await.len(), 6);
}

/// A large table's index is built beforehand, while jobs run.
#[tokio::test]
async fn what_the_guide_prepares_is_used() {
    let url = database().await;
    let psql = |sql: &str| shared_postgres().psql(&url, sql).unwrap();
    psql(VERSION_1);
    let guide = include_str!("../../docs/guide/postgres.md").lines();
    let steps: Vec<&str> = guide.filter(|line| line.contains(" IF NOT EXISTS ")).collect();
    assert_eq!(steps.len(), 2, "{steps:?}");
    steps.iter().for_each(|step| drop(psql(step)));
    let index = "SELECT 'dq.job_group'::regclass::oid, pg_get_indexdef('dq.job_group'::regclass)";
    let prepared = psql(index);
    assert_eq!(migrate(&url, None).await, Migrated::Updated);
    assert_eq!(psql(index), prepared);
    let other = database().await;
    connect(&other).await;
    let created = shared_postgres().psql(&other, index).unwrap();
    assert_eq!(created.split('|').nth(1), prepared.split('|').nth(1));
}
