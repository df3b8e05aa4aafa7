//! The schema: created once, kept apart from others, checked for its version, and restored.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::{Environment, Migrated, backend_from_url};
use dq_core::{Backend, ErrorKind};
use dq_servers::shared_postgres;
use dq_testkit::fixture::{
    assert_error, by_id, claim_for, in_an_hour, job, keyed, queue, run_due, stats, wait_until,
};

use crate::common::client;
use crate::connect::{connect, open};

/// The URL of a new database.
async fn database() -> String {
    tokio::task::spawn_blocking(|| shared_postgres().create_database()).await.unwrap()
}

fn execute(url: &str, sql: &str) -> String {
    shared_postgres().psql(url, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn schema_sql(url: &str) -> String {
    backend_from_url(url).unwrap().schema_sql(None).unwrap()
}

/// Migrates without opening the store.
pub(crate) async fn migrate(url: &str, role: Option<&str>) -> Migrated {
    let config = backend_from_url(&format!("{url}?response_timeout=60s")).unwrap();
    config.migrate(role).await.unwrap()
}

/// As in `schema.rs`.
const LOCK: i64 = 0x6471_6a62;

/// As in `listener.rs`.
const MAX_QUIET: Duration = Duration::from_millis(1_200);

const FUNCTIONS: &str = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'dq'::regnamespace";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_connect_at_the_same_time_create_it_once() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let url = database().await;
        let name = url.rsplit('/').next().unwrap();
        let setting = format!("SET default_transaction_isolation = '{isolation}'");
        execute(&url, &format!("ALTER DATABASE {name} {setting}"));
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { open(&url).await })
            })
            .collect();
        for opened in opening {
            let backend = opened.await.unwrap();
            backend.schedule(vec![job("q")]).await.unwrap();
        }
        assert_eq!(execute(&url, "SELECT count(*), min(version) FROM dq.meta"), "1|2");
        assert_eq!(run_due(&*open(&url).await, "q").await.len(), 8, "{isolation}");
    }
}

#[tokio::test]
async fn a_schema_with_other_tables_is_left_alone() {
    for tables in [
        "CREATE TABLE dq.job (id integer)",
        "CREATE VIEW dq.report AS SELECT 1",
        "CREATE TABLE dq.meta (version text)",
        "CREATE TABLE dq.meta (version integer, min_writer integer, min_reader integer)",
    ] {
        let url = database().await;
        execute(&url, &format!("CREATE SCHEMA dq; {tables}"));
        let words = ["schema dq", "did not create", "another `schema`"];
        assert_error(connect(&url).await, ErrorKind::Incompatible, &words);
        let objects = "SELECT count(*) FROM pg_class WHERE relnamespace = 'dq'::regnamespace";
        assert_eq!(execute(&url, objects), "1");
        assert_eq!(execute(&url, FUNCTIONS), "0");
        open(&format!("{url}?schema=jobs")).await.schedule(vec![job("q")]).await.unwrap();
    }
    let url = database().await;
    execute(&url, "CREATE SCHEMA dq");
    open(&url).await.schedule(vec![job("q")]).await.unwrap();
}

#[tokio::test]
async fn only_an_existing_schema_is_connected_to_without_creating_one() {
    let url = database().await;
    let config = backend_from_url(&format!("{url}?response_timeout=60s")).unwrap();
    let environment = Environment::default();
    let refusal = config.connect_existing(&environment).await;
    assert_error(refusal, ErrorKind::Config, &["schema dq", "correct the database"]);
    assert_eq!(execute(&url, "SELECT to_regnamespace('dq') IS NULL"), "t");
    open(&url).await.schedule(vec![job("q")]).await.unwrap();
    let existing = config.connect_existing(&environment).await.unwrap();
    assert_eq!(run_due(&*existing, "q").await.len(), 1);
}

#[tokio::test]
async fn a_later_version_is_used_unless_it_forbids_that() {
    let url = database().await;
    open(&url).await.close().await.unwrap();
    let later = "ALTER TABLE dq.job ADD COLUMN later integer NOT NULL DEFAULT 1;
        ALTER TABLE dq.meta ADD COLUMN later integer; UPDATE dq.meta SET version = 3";
    execute(&url, later);
    let running = open(&url).await;
    running.schedule(vec![job("q"), in_an_hour(keyed("q", "k"))]).await.unwrap();
    assert_eq!(run_due(&*running, "q").await.len(), 1);
    assert_eq!(execute(&url, "SELECT version FROM dq.meta"), "3", "is not changed back");

    for (minimum, verb) in [("min_writer", "write"), ("min_reader", "read")] {
        execute(
            &url,
            &format!("UPDATE dq.meta SET min_writer = 1; UPDATE dq.meta SET {minimum} = 3"),
        );
        let words = ["version 3", verb, "knows version 2", "upgrade dq-postgres"];
        assert_error(connect(&url).await, ErrorKind::Incompatible, &words);
        let findings = running.check().await;
        assert!(findings.iter().any(|found| found.cause.contains("version 3")), "{findings:?}");
    }
}

#[tokio::test]
async fn connecting_again_restores_functions_that_were_dropped() {
    let url = database().await;
    let backend = open(&url).await;
    let all = execute(&url, FUNCTIONS);
    for function in ["store_job", "end_job", "now_ms"] {
        backend.schedule(vec![job("q")]).await.unwrap();
        execute(&url, &format!("DROP FUNCTION dq.{function}"));
        let stored = backend.schedule(vec![job("q")]).await;
        if function != "end_job" {
            let words = [function, "does not exist", "connect again"];
            assert_error(stored, ErrorKind::Incompatible, &words);
        }
        let other = open(&url).await;
        assert_eq!(execute(&url, FUNCTIONS), all, "without {function}");
        other.cancel(&[by_id(&job("q"))]).await.unwrap();
        assert!(!run_due(&*backend, "q").await.is_empty(), "without {function}");
    }
    // A later version's functions are not ours to restore.
    execute(&url, "DROP FUNCTION dq.store_job; UPDATE dq.meta SET version = 3");
    let other = open(&url).await;
    assert_error(other.schedule(vec![job("q")]).await, ErrorKind::Incompatible, &["store_job"]);
}

#[tokio::test]
async fn a_changed_table_or_function_is_incompatible() {
    let url = database().await;
    let backend = open(&url).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    execute(&url, "ALTER TABLE dq.job RENAME COLUMN worker TO runner");
    let claimed = claim_for(&*backend, &["q"], 1, Duration::ZERO).await;
    assert_error(claimed, ErrorKind::Incompatible, &["worker", "another `schema`"]);
    execute(&url, "DROP TABLE dq.job CASCADE");
    assert_error(backend.schedule(vec![job("q")]).await, ErrorKind::Incompatible, &["dq.job"]);

    let url = database().await;
    let backend = open(&url).await;
    execute(
        &url,
        "DROP FUNCTION dq.cancel_jobs; CREATE FUNCTION dq.cancel_jobs(text[], uuid[], text[])
        RETURNS text LANGUAGE sql AS $$ SELECT 'changed' $$",
    );
    let cancelled = backend.cancel(&[by_id(&job("q"))]).await;
    assert_error(cancelled, ErrorKind::Incompatible, &["function", "drop"]);
    // The remedy.
    execute(&url, "DROP FUNCTION dq.cancel_jobs");
    open(&url).await.cancel(&[by_id(&job("q"))]).await.unwrap();
}

const NOW: &str = "SELECT prosrc FROM pg_proc WHERE oid = 'dq.now_ms'::regproc";

fn replace_now(url: &str, body: &str) {
    let sql = "CREATE OR REPLACE FUNCTION dq.now_ms() RETURNS bigint LANGUAGE sql AS";
    execute(url, &format!("{sql} $${body}$$"));
}

#[tokio::test]
async fn functions_of_an_older_build_are_replaced_and_those_of_a_newer_one_stay() {
    let url = database().await;
    assert_eq!(migrate(&url, None).await, Migrated::Created);
    assert_eq!(migrate(&url, None).await, Migrated::Unchanged);
    let versions = "SELECT version, functions FROM dq.meta";
    let (ours, body) = (execute(&url, versions), execute(&url, NOW));
    // An hour late: a job for now is not due.
    let other = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 3600000";
    // An older build's, then changed by hand.
    for change in ["SET functions = 0", "SET functions = functions"] {
        replace_now(&url, other);
        execute(&url, &format!("UPDATE dq.meta {change}"));
        let backend = open(&url).await;
        assert_eq!(execute(&url, NOW), body, "{change}");
        assert_eq!(execute(&url, versions), ours, "{change}");
        let real_now = execute(&url, "SELECT extract(epoch FROM clock_timestamp())::bigint * 1000");
        let late = real_now.parse::<i64>().unwrap() - backend.now().await.unwrap().as_millis();
        assert!(late < 600_000, "{late}");
    }
    replace_now(&url, other);
    assert_eq!(migrate(&url, None).await, Migrated::Updated);
    // A newer build's, beside which an older process starts, or to which a deployment rolls back.
    replace_now(&url, other);
    for newer in ["functions = functions + 1", "version = 3"] {
        execute(&url, &format!("UPDATE dq.meta SET {newer}"));
        open(&url).await.schedule(vec![in_an_hour(job("q"))]).await.unwrap();
        assert_eq!(migrate(&url, None).await, Migrated::Unchanged);
        execute(&url, &schema_sql(&url));
        assert_eq!(execute(&url, NOW), other, "{newer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_and_a_newer_build_that_connect_at_the_same_time_leave_the_newer_functions() {
    let url = database().await;
    migrate(&url, None).await;
    replace_now(&url, "SELECT 0");
    let version = execute(&url, "SELECT functions FROM dq.meta");
    // A newer build migrates, while this one has read the older version and waits for the lock.
    let newer = format!(
        "BEGIN; SELECT pg_advisory_xact_lock({LOCK}); UPDATE dq.meta SET functions = {version} + 1"
    );
    let client = client(&url).await;
    client.batch_execute(&newer).await.unwrap();
    let connecting = tokio::spawn({
        let url = url.clone();
        async move { connect(&url).await.map(drop) }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    wait_until("it waits", async || execute(&url, waits) == "1").await;
    client.batch_execute("COMMIT").await.unwrap();
    connecting.await.unwrap().unwrap();
    assert_eq!(execute(&url, NOW), "SELECT 0");
}

/// The catalog's view of a schema, without what differs from store to store.
const CATALOG: &str = "
    SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = '{}'::regnamespace
    UNION ALL SELECT concat(c.relkind, c.relname, c.reloptions,
            pg_get_indexdef(CASE WHEN c.relkind = 'i' THEN c.oid END),
            pg_get_viewdef(CASE WHEN c.relkind = 'v' THEN c.oid END))
        FROM pg_class c WHERE c.relnamespace = '{}'::regnamespace
    UNION ALL SELECT concat_ws(' ', c.relname, a.attnum, a.attname, format_type(atttypid, atttypmod),
            attnotnull, attidentity, pg_get_expr(adbin, adrelid))
        FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid
            LEFT JOIN pg_attrdef ON adrelid = c.oid AND adnum = attnum
        WHERE c.relnamespace = '{}'::regnamespace
    UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = '{}'::regnamespace
    UNION ALL SELECT (to_jsonb(meta) - 'store')::text FROM {}.meta
    UNION ALL SELECT to_jsonb(s)::text FROM pg_sequences s
        WHERE quote_ident(schemaname) = '{}'
    ORDER BY 1";

#[tokio::test]
async fn the_printed_sql_creates_what_connecting_creates() {
    for (option, schema) in [("", "dq"), ("?schema=order", r#""order""#)] {
        let (connected, printed) = (database().await, database().await);
        open(&format!("{connected}{option}")).await.close().await.unwrap();
        let sql = schema_sql(&format!("{printed}{option}"));
        execute(&printed, &sql);
        let catalog = CATALOG.replace("{}", schema);
        let created = execute(&printed, &catalog);
        assert!(created.lines().count() > 1_000, "{created}");
        assert_eq!(created, execute(&connected, &catalog));
        // Again, within a transaction of its own.
        execute(&printed, &format!("BEGIN; {sql} COMMIT"));
        assert_eq!(created, execute(&printed, &catalog));
        execute(&printed, &format!("DROP SCHEMA {schema} CASCADE"));
        execute(&printed, &format!("BEGIN; {sql} ROLLBACK"));
        assert_eq!(execute(&printed, &format!("SELECT to_regnamespace('{schema}') IS NULL")), "t");
    }
}

/// Also names that are keywords of SQL.
#[tokio::test]
async fn each_schema_is_a_store_of_its_own() {
    let url = database().await;
    let mut stores: Vec<Arc<dyn Backend>> = vec![open(&url).await];
    for schema in ["dq_2", "user", "order", "a234567890123456789012345678901_"] {
        stores.push(open(&format!("{url}?schema={schema}")).await);
    }
    let new = keyed("q", "k");
    let mut listening = Vec::new();
    for store in &stores {
        listening.push(store.listen(&[queue("q")], "test").await.unwrap());
        // The same id and key everywhere.
        let stored = store.schedule(vec![new.clone(), in_an_hour(job("q"))]).await.unwrap();
        assert!(stored[0].is_stored());
    }
    for store in &stores {
        assert_eq!(run_due(&**store, "q").await.len(), 1);
        let counts = stats(&**store, "q").await;
        assert_eq!((counts.scheduled, counts.totals.unwrap().done), (1, 1));
        let none = store.check().await.iter().all(|found| !found.code.contains("unreadable"));
        assert!(none);
    }
    // Hints pass in each schema: sooner than a quiet process looks by itself.
    for (store, wakeups) in stores.iter().zip(&mut listening) {
        wait_until("a hint", async || {
            let claimed = Instant::now();
            run_due(&**store, "q").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            while tokio::time::timeout(Duration::ZERO, wakeups.next()).await.is_ok() {}
            store.schedule(vec![job("q")]).await.unwrap();
            let hinted = tokio::time::timeout(Duration::from_millis(500), wakeups.next()).await;
            hinted.is_ok() && claimed.elapsed() < MAX_QUIET
        })
        .await;
    }
}
