//! Imports from tables in PostgreSQL.

use std::path::Path;

use dq_servers::{Postgres, shared_postgres};
use serde_json::Value;

use crate::support::{code, ok, run, text};

/// A database with a store and other tables.
fn database(path: &Path) -> (&'static Postgres, String) {
    let postgres = shared_postgres();
    let url = postgres.create_database();
    ok(path, &["migrate", "--url", &url]);
    (postgres, url)
}

fn import(path: &Path, url: &str, query: &str, rest: &[&str]) -> (i32, String, String) {
    let line = ["import", "postgres", "--from", url, "--url", url, "--query", query];
    let output = run(path, &[&line[..], rest].concat());
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The jobs of all queues in the order of their due times, with payload and headers.
fn jobs(path: &Path, url: &str) -> Vec<Value> {
    let list = ok(path, &["jobs", "ls", "--all", "--json", "--url", url]);
    let mut jobs: Vec<Value> = list
        .lines()
        .map(|line| {
            let job: Value = serde_json::from_str(line).unwrap();
            let (queue, id) = (job["queue"].as_str().unwrap(), job["id"].as_str().unwrap());
            let job = ok(path, &["jobs", "get", queue, id, "--json", "--url", url]);
            serde_json::from_str(&job).unwrap()
        })
        .collect();
    jobs.sort_by_key(|job| job["due"].to_string());
    jobs
}

#[test]
fn rows_are_counted_and_copied_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (postgres, url) = database(path);
    let sql = "CREATE TABLE orders (id int, due timestamptz, owner text);
        INSERT INTO orders SELECT n, timestamptz '2100-01-01Z' + n * interval '0.0001 s', 'o' || n
            FROM generate_series(1, 2500) n;";
    postgres.psql(&url, sql).unwrap();
    let query = "SELECT id, due, to_jsonb(orders) AS payload, owner AS key, id AS max_attempts,
        CASE WHEN id = 7 THEN '{\"a\": \"b\"}'::json END AS headers FROM orders ORDER BY id;";
    let import = |rest: &[&str]| import(path, &url, query, &[&["--queue", "ORDER"], rest].concat());
    let counted = "2500 jobs of the query can be imported into ORDER";
    let refused =
        format!("error: {counted}; nothing was changed\nremedy: repeat the command with --yes\n");
    assert_eq!(import(&[]), (2, String::new(), refused));
    assert_eq!(import(&["--dry-run"]), (0, format!("{counted}\n"), String::new()));
    assert_eq!(code(path, &["queues", "ORDER", "--url", &url]).0, 3, "nothing was changed");

    let imported = "imported 2500 jobs of the query into ORDER\n";
    assert_eq!(import(&["--yes"]), (0, imported.to_owned(), String::new()));
    let stored = "SELECT count(*), max(due) - min(due), max(max_attempts) FROM dq.job";
    let expected = "2500|249|2500";
    assert_eq!(postgres.psql(&url, stored).unwrap(), expected);
    let seventh = "SELECT headers, convert_from(payload, 'UTF8')::jsonb ->> 'owner' FROM dq.job
        WHERE key = 'o7'";
    assert_eq!(postgres.psql(&url, seventh).unwrap(), r#"{"a":"b"}|o7"#);

    // Repeated, after jobs have ended and rows have come.
    ok(path, &["jobs", "cancel", "ORDER", "key:o1", "--url", &url]);
    postgres.psql(&url, "INSERT INTO orders VALUES (9999, '2100-01-02Z', 'o3')").unwrap();
    let imported = "imported 2499 jobs of the query into ORDER\n";
    let notes = "1 job of an earlier import ended before, and will not run again\n\
                 1 job not stored: another job has the key or the id\n";
    assert_eq!(import(&["--yes"]), (1, imported.to_owned(), notes.to_owned()));
    let live = "SELECT count(*) FROM dq.job WHERE state < 2";
    assert_eq!(postgres.psql(&url, live).unwrap(), "2499");
    postgres.psql(&url, "DELETE FROM orders").unwrap();
    let nothing = "imported 0 jobs of the query\n";
    assert_eq!(import(&["--yes"]), (0, nothing.to_owned(), String::new()));
}

#[test]
fn an_invalid_row_is_named_and_nothing_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (postgres, url) = database(path);
    let good = "SELECT n AS id, 'ORDER' AS queue, '{}'::jsonb AS payload, now() AS due
        FROM generate_series(1, 1999) n";
    for (row, words) in [
        ("NULL, 'ORDER', '{}'::jsonb, now()", "row 2000, column id: it is null"),
        ("7, 'ORDER', '{}'::jsonb, now()", "row 2000, column id: row 7 has the same"),
        ("0, NULL, '{}'::jsonb, now()", "row 2000, column queue: it is null"),
        ("0, '', '{}'::jsonb, now()", "row 2000, column queue: the queue name is empty"),
        ("0, 'dq.schedules', '{}'::jsonb, now()", "row 2000, column queue: the queue name dq."),
        ("0, 'ORDER', NULL, now()", "row 2000, column payload: it is null"),
        ("0, 'ORDER', '{}'::jsonb, NULL", "row 2000, column due: it is null"),
        ("0, 'ORDER', '{}'::jsonb, 'infinity'", "row 2000, column due: it is infinite"),
        ("0, 'ORDER', '{}'::jsonb, '-infinity'", "row 2000, column due: it is infinite"),
        ("0, 'ORDER', '{}'::jsonb, '1969-01-01'", "row 2000, column due: the due time"),
        ("0, 'ORDER', '{}'::jsonb, '2900-01-01'", "row 2000, column due: the due time"),
    ] {
        let query = format!("{good} UNION ALL (SELECT {row})");
        for rest in [&["--yes"][..], &["--dry-run"]] {
            let (status, stdout, error) = import(path, &url, &query, rest);
            assert_eq!((status, stdout), (2, String::new()), "{row}: {error}");
            assert!(error.starts_with(words), "{row}: {error}");
            let all = "error: 1 of 2000 rows cannot be imported; nothing was changed";
            assert!(error.contains(all), "{row}: {error}");
        }
    }
    let one = "SELECT 1 AS id, 'ORDER' AS queue, '{}' AS payload, now() AS due";
    for (query, words) in [
        (&*format!("{one}, '' AS key"), "row 1, column key: the key is empty"),
        (&format!("{one}, 7 AS key"), "row 1, column key: it is of type int4; cast it to text"),
        (
            &format!("{one}, '1'::jsonb AS headers"),
            "row 1, column headers: it is not a JSON object",
        ),
        (&format!("{one}, 'x' AS headers"), "row 1, column headers: it is of type text; use jsonb"),
        (&format!("{one}, 0 AS max_attempts"), "row 1, max_attempts of a job for queue ORDER is 0"),
        (&format!("{one}, -1 AS max_attempts"), "row 1, column max_attempts: -1 is not from 1"),
        (
            &one.replace("now()", "localtimestamp"),
            "row 1, column due: it is of type timestamp; use",
        ),
        (&one.replace("'{}'", "'no JSON'"), "row 1, column payload: it is not JSON"),
        (&one.replace("'{}'", "7.5"), "row 1, column payload: it is of type numeric; make it JSON"),
        (
            &one.replace("1 AS", "1.5 AS"),
            "row 1, column id: it is of type numeric; cast it to text",
        ),
        (&one.replace("AS due", "AS dew"), "error: the query has no column due"),
        (&one.replace("'ORDER' AS queue,", ""), "error: the query has no column queue"),
        (&format!("{one}, 1 AS state"), "error: the query has a column state, which no job has"),
        (&format!("{one}, 'k' AS key, 'l' AS key"), "error: the query has two columns key"),
        ("SELECT 1 FROM nowhere", "relation \"nowhere\" does not exist"),
        ("SELECT 1; DROP TABLE dq.job", "cannot insert multiple commands"),
        ("DELETE FROM dq.job", "syntax error"),
        ("SELECT setval('dq.job_seq', 1)", "in a read-only transaction"),
        (&format!("{one}, 1 / 0 AS key"), "division by zero"),
    ] {
        let (status, _, error) = import(path, &url, query, &["--yes"]);
        assert_eq!(status, 2, "{query}: {error}");
        assert!(error.contains(words), "{query}: {error}");
    }
    let (status, _, error) = import(path, &url, one, &["--yes", "--queue", "ORDER"]);
    assert_eq!(status, 2);
    assert!(error.contains("the queue is given, and the query has a column queue"), "{error}");
    assert_eq!(postgres.psql(&url, "SELECT count(*) FROM dq.job").unwrap(), "0");
    let nowhere = "postgres://dq:hunter2@127.0.0.1:1/shop";
    let line = ["import", "postgres", "--from", nowhere, "--url", &url, "--query", one];
    let (status, error) = code(path, &line);
    assert_eq!(status, 5, "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

/// Other types of the same columns.
#[test]
fn each_type_of_a_column_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (_, url) = database(path);
    let id = "01a223dd-44da-7e27-b1dd-7a8eb914d5be";
    let query = format!(
        "SELECT '{id}'::uuid AS id, 'A'::varchar AS queue, convert_to('raw', 'UTF8') AS payload,
            timestamptz '2100-01-01Z' AS due, '{{\"content-type\": \"text/plain\"}}'::jsonb AS headers,
            1::smallint AS max_attempts
        UNION ALL SELECT gen_random_uuid(), 'B', convert_to('[1]', 'UTF8'), '2100-01-02Z', NULL, NULL"
    );
    let (status, stdout, error) = import(path, &url, &query, &["--yes"]);
    assert_eq!((status, &*stdout), (0, "imported 2 jobs of the query into 2 queues\n"), "{error}");
    let jobs = jobs(path, &url);
    assert_eq!((&jobs[0]["id"], &jobs[0]["queue"]), (&id.into(), &"A".into()));
    assert_eq!(jobs[0]["max_attempts"], 1);
    assert_eq!(
        (&jobs[0]["due"], &jobs[1]["queue"]),
        (&"2100-01-01T00:00:00.000Z".into(), &"B".into())
    );
}

const OTHERS: &str = r#"
    CREATE TYPE oban_job_state AS ENUM
        ('available', 'scheduled', 'executing', 'retryable', 'completed', 'discarded', 'cancelled');
    CREATE TABLE oban_jobs (
        id bigserial PRIMARY KEY, state oban_job_state NOT NULL DEFAULT 'available',
        queue text NOT NULL DEFAULT 'default', worker text NOT NULL,
        args jsonb NOT NULL DEFAULT '{}', attempt integer NOT NULL DEFAULT 0,
        max_attempts integer NOT NULL DEFAULT 20,
        scheduled_at timestamp NOT NULL DEFAULT timezone('UTC', now()));
    INSERT INTO oban_jobs (state, worker, args, attempt, scheduled_at) VALUES
        ('scheduled', 'MyApp.Mailer', '{"id": 1}', 0, '2100-01-01'),
        ('retryable', 'MyApp.Mailer', '{"id": 2}', 19, '2100-01-02'),
        ('executing', 'MyApp.Mailer', '{"id": 3}', 1, '2100-01-03'),
        ('completed', 'MyApp.Mailer', '{"id": 4}', 1, '2100-01-04');

    CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded',
        'pending', 'retryable', 'running', 'scheduled');
    CREATE TABLE river_job (
        id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available',
        attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL,
        scheduled_at timestamptz NOT NULL DEFAULT now(), args jsonb NOT NULL, kind text NOT NULL,
        queue text NOT NULL DEFAULT 'default');
    INSERT INTO river_job (state, attempt, max_attempts, scheduled_at, args, kind) VALUES
        ('scheduled', 0, 25, '2100-01-01Z', '{"id": 1}', 'send_mail'),
        ('retryable', 25, 25, '2100-01-02Z', '{"id": 2}', 'send_mail'),
        ('running', 1, 25, '2100-01-03Z', '{"id": 3}', 'send_mail');

    CREATE SCHEMA graphile_worker;
    CREATE TABLE graphile_worker._private_tasks (id int PRIMARY KEY, identifier text NOT NULL);
    CREATE TABLE graphile_worker._private_jobs (
        id bigint PRIMARY KEY, task_id int NOT NULL, payload json NOT NULL DEFAULT '{}',
        run_at timestamptz NOT NULL DEFAULT now(), attempts smallint NOT NULL DEFAULT 0,
        max_attempts smallint NOT NULL DEFAULT 25, key text, locked_at timestamptz);
    INSERT INTO graphile_worker._private_tasks VALUES (1, 'send_mail');
    INSERT INTO graphile_worker._private_jobs VALUES
        (1, 1, '{"id": 1}', '2100-01-01Z', 0, 25, 'mail-1', NULL),
        (2, 1, '{"id": 2}', '2100-01-02Z', 24, 25, NULL, NULL),
        (3, 1, '{"id": 3}', '2100-01-03Z', 25, 25, NULL, NULL),
        (4, 1, '{"id": 4}', '2100-01-04Z', 1, 25, NULL, now());

    CREATE SCHEMA pgboss;
    CREATE TYPE pgboss.job_state AS ENUM
        ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
    CREATE TABLE pgboss.job (
        id uuid NOT NULL DEFAULT gen_random_uuid(), name text NOT NULL, data jsonb,
        state pgboss.job_state NOT NULL DEFAULT 'created', retry_limit integer NOT NULL DEFAULT 2,
        retry_count integer NOT NULL DEFAULT 0, start_after timestamptz NOT NULL DEFAULT now(),
        singleton_key text, PRIMARY KEY (name, id));
    INSERT INTO pgboss.job (name, data, state, retry_count, start_after, singleton_key) VALUES
        ('send-mail', '{"id": 1}', 'created', 0, '2100-01-01Z', 'mail-1'),
        ('send-mail', NULL, 'retry', 2, '2100-01-02Z', NULL),
        ('send-mail', '{"id": 3}', 'active', 0, '2100-01-03Z', NULL),
        ('__pgboss__send-it', NULL, 'created', 0, '2100-01-04Z', NULL);

    CREATE TABLE qrtz_job_details (
        sched_name varchar(120) NOT NULL, job_name varchar(200) NOT NULL,
        job_group varchar(200) NOT NULL, job_class_name varchar(250) NOT NULL, job_data bytea,
        PRIMARY KEY (sched_name, job_name, job_group));
    CREATE TABLE qrtz_triggers (
        sched_name varchar(120) NOT NULL, trigger_name varchar(200) NOT NULL,
        trigger_group varchar(200) NOT NULL, job_name varchar(200) NOT NULL,
        job_group varchar(200) NOT NULL, next_fire_time bigint, trigger_state varchar(16) NOT NULL,
        trigger_type varchar(8) NOT NULL, job_data bytea,
        PRIMARY KEY (sched_name, trigger_name, trigger_group));
    CREATE TABLE qrtz_simple_triggers (
        sched_name varchar(120) NOT NULL, trigger_name varchar(200) NOT NULL,
        trigger_group varchar(200) NOT NULL, repeat_count bigint NOT NULL,
        PRIMARY KEY (sched_name, trigger_name, trigger_group));
    INSERT INTO qrtz_job_details VALUES ('s', 'close', 'orders', 'com.shop.CloseOrderJob', '\xaced');
    INSERT INTO qrtz_triggers VALUES
        ('s', '1', 'orders', 'close', 'orders', 4102444800000, 'WAITING', 'SIMPLE', NULL),
        ('s', '2', 'orders', 'close', 'orders', 4102531200000, 'WAITING', 'SIMPLE', NULL),
        ('s', '3', 'orders', 'close', 'orders', 4102617600000, 'WAITING', 'SIMPLE', NULL),
        ('s', '4', 'orders', 'close', 'orders', 4102704000000, 'WAITING', 'CRON', NULL),
        ('s', '5', 'orders', 'close', 'orders', NULL, 'COMPLETE', 'SIMPLE', NULL);
    INSERT INTO qrtz_simple_triggers VALUES
        ('s', '1', 'orders', 0), ('s', '2', 'orders', 0), ('s', '3', 'orders', -1),
        ('s', '5', 'orders', 0);
"#;

/// Runs the page's queries on tables as these systems create them, without columns that no query
/// reads. Each has two pending jobs.
#[test]
fn the_guides_queries_read_pending_jobs() {
    let page = include_str!("../../docs/guide/migrating.md");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (postgres, url) = database(path);
    postgres.psql(&url, OTHERS).unwrap();
    let first = Some("mail-1");
    for (heading, queue, keys, limits, payloads) in [
        ("Oban", "MyApp.Mailer", [None; 2], [Some(20), Some(1)], [r#"{"id":1}"#, r#"{"id":2}"#]),
        ("River", "send_mail", [None; 2], [Some(25), Some(1)], [r#"{"id":1}"#, r#"{"id":2}"#]),
        (
            "graphile_worker",
            "send_mail",
            [first, None],
            [Some(25), Some(1)],
            [r#"{"id":1}"#, r#"{"id":2}"#],
        ),
        ("pg-boss", "send-mail", [first, None], [Some(3), Some(1)], [r#"{"id":1}"#, "null"]),
        (
            "Quartz with its JDBC store",
            "CloseOrderJob",
            [Some("orders.1"), Some("orders.2")],
            [None; 2],
            [r#"{"name":"close","group":"orders"}"#; 2],
        ),
    ] {
        let (_, section) = page.split_once(&format!("\n### {heading}\n")).unwrap();
        let (query, _) = section.split_once("```sql\n").unwrap().1.split_once("```").unwrap();
        let imported = format!("imported 2 jobs of the query into {queue}\n");
        for _ in 0..2 {
            let done = import(path, &url, query, &["--yes"]);
            assert_eq!(done, (0, imported.clone(), String::new()), "{heading}");
        }
        let jobs = jobs(path, &url);
        assert_eq!(jobs.len(), 2, "{heading}");
        for (number, job) in jobs.iter().enumerate() {
            assert_eq!(job["queue"], queue, "{heading}");
            assert_eq!(job["due"], format!("2100-01-0{}T00:00:00.000Z", number + 1), "{heading}");
            assert_eq!(job["key"].as_str(), keys[number], "{heading}");
            assert_eq!(job["max_attempts"].as_u64(), limits[number], "{heading}");
            let payload: Value = serde_json::from_str(payloads[number]).unwrap();
            assert_eq!(job["payload"]["json"], payload, "{heading}");
        }
        postgres.psql(&url, "DELETE FROM dq.job").unwrap();
    }
    assert_eq!(page.matches("```sql").count(), 5, "each query is run");
}
