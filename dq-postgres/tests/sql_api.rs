//! The SQL functions for other programs, in their transactions.

use dq_core::{Backend, Due, JobKey, JobRef, Target, Verdict};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::common::{claim, client, connect, database, job, queue, settle};

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

const SCHEDULE: &str =
    "SELECT outcome FROM dq.schedule('orders', '{\"id\": 17}', now(), key => 'order-17'";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_commits_and_rolls_back_with_the_callers_rows() {
    let url = database().await;
    let backend = connect(&url).await;
    let client = client(&url).await;
    client.batch_execute("CREATE TABLE orders (id bigint)").await.unwrap();
    let write = format!("BEGIN; INSERT INTO orders VALUES (17); {SCHEDULE})");
    client.batch_execute(&format!("{write}; ROLLBACK")).await.unwrap();
    assert_eq!(claim(&backend, 10).await.jobs.len(), 0);
    let mut hints = backend.listen(&[queue()], "test").await.unwrap();
    client.batch_execute(&format!("{write}; COMMIT")).await.unwrap();
    hints.next().await;
    let jobs = claim(&backend, 10).await.jobs;
    assert_eq!(&jobs[0].job.payload[..], br#"{"id": 17}"#);
    settle(&backend, &jobs, Verdict::Done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_schedules_for_each_row() {
    let url = database().await;
    let backend = connect(&url).await;
    let client = client(&url).await;
    client
        .batch_execute(
            "CREATE TABLE orders (id bigint);
            CREATE FUNCTION await_payment() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM dq.schedule('orders', to_jsonb(NEW), now() + interval '15 minutes',
                    key => 'order-' || NEW.id);
                RETURN NEW;
            END $$;
            CREATE TRIGGER await_payment AFTER INSERT ON orders
                FOR EACH ROW EXECUTE FUNCTION await_payment();
            INSERT INTO orders VALUES (1), (2)",
        )
        .await
        .unwrap();
    let stats = backend.stats(&[queue()]).await.unwrap().remove(0);
    assert_eq!(stats.scheduled, 2);
    let key = Target::Key(JobKey::new("order-2").unwrap());
    let job = backend.get(&JobRef::new(queue(), key)).await.unwrap().unwrap();
    assert_eq!(&job.job.payload[..], br#"{"id": 2}"#);
}

/// `now()` is the begin of the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn long_transactions_that_schedule_for_now_do_not_wait_for_each_other() {
    let url = database().await;
    let backend = connect(&url).await;
    let (first, second) = (client(&url).await, client(&url).await);
    for client in [&first, &second] {
        let begin = "SET lock_timeout = '20s'; BEGIN; SELECT pg_sleep(0.2)";
        client.batch_execute(begin).await.unwrap();
    }
    // A queue's first job creates it, and others wait for that.
    backend.schedule(vec![job(Due::NOW)]).await.unwrap();
    for (client, id) in [(&first, 1), (&second, 2)] {
        let schedule = format!("SELECT dq.schedule('orders', '{id}', now())");
        client.batch_execute(&schedule).await.unwrap();
    }
    first.batch_execute("COMMIT").await.unwrap();
    second.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claim(&backend, 10).await.jobs.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_has_a_name() {
    let url = database().await;
    let backend = connect(&url).await;
    let client = client(&url).await;
    let schedule = async |more: &str| text(&client, &format!("{SCHEDULE}{more})")).await;
    assert_eq!(schedule("").await, "created");
    assert_eq!(schedule("").await, "kept");
    assert_eq!(schedule(", on_conflict => 'replace'").await, "replaced");
    let get = "SELECT state FROM dq.get('orders', 'order-17')";
    assert_eq!(text(&client, get).await, "ready");
    let reschedule = "SELECT dq.reschedule('orders', now() + interval '1 hour', 'order-17')";
    assert_eq!(text(&client, reschedule).await, "moved");
    assert_eq!(text(&client, get).await, "scheduled");
    assert_eq!(schedule(", on_conflict => 'earliest'").await, "replaced");
    let running = claim(&backend, 1).await.jobs;
    assert_eq!(text(&client, get).await, "running");
    assert_eq!(schedule("").await, "already_running");
    let cancel = "SELECT dq.cancel('orders', 'order-17')";
    assert_eq!(text(&client, cancel).await, "already_running");
    assert_eq!(text(&client, reschedule).await, "already_running");
    assert_eq!(schedule(", on_running => 'detach'").await, "created");
    assert_eq!(text(&client, cancel).await, "cancelled");
    assert_eq!(text(&client, cancel).await, "not_found");
    settle(&backend, &running, Verdict::Done).await;
    let pinned = ", id => '01a223dd-44da-7e27-b1dd-7a8eb914d5be', remember => '1 hour'";
    assert_eq!(schedule(pinned).await, "created");
    assert_eq!(schedule(pinned).await, "created", "a repetition");
    settle(&backend, &claim(&backend, 1).await.jobs, Verdict::Done).await;
    assert_eq!(schedule(pinned).await, "ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_by_name_and_stores_nothing() {
    let url = database().await;
    let backend = connect(&url).await;
    let client = client(&url).await;
    for (call, words) in [
        ("schedule('', '1', now())", "dq: queue must have 1 to 128 bytes"),
        ("schedule(null, '1', now())", "dq: queue must have 1 to 128 bytes"),
        ("schedule(repeat('q', 129), '1', now())", "dq: queue must have 1 to 128 bytes"),
        ("schedule(E'a\\tb', '1', now())", "without control characters"),
        ("schedule(U&'a\\0085b', '1', now())", "without control characters"),
        ("schedule('dq.schedules', '1', now())", "dq.schedules is reserved"),
        ("schedule('orders', '{\"id\": ', now())", "invalid input syntax for type json"),
        ("schedule('orders', 'NaN', now())", "invalid input syntax for type json"),
        ("schedule('orders', '\"\\u0000\"', now())", "unsupported Unicode escape sequence"),
        ("schedule('orders', null, now())", "payload and due must not be null"),
        ("schedule('orders', '1', null)", "payload and due must not be null"),
        ("schedule('orders', '1', localtimestamp)", "timestamp without time zone"),
        ("schedule('orders', '1', '1969-12-31')", "due must be from 1970 to 9999"),
        ("schedule('orders', '1', 'infinity')", "due must be from 1970 to 9999"),
        ("schedule('orders', '1', '-infinity')", "due must be from 1970 to 9999"),
        ("schedule('orders', '1', '294276-12-31')", "due must be from 1970 to 9999"),
        ("schedule('orders', '1', 'NaN')", "invalid input syntax for type timestamp"),
        ("schedule('orders', '1', now(), key => '')", "key must have 1 to 255 bytes"),
        ("schedule('orders', '1', now(), key => repeat('ß', 128))", "key must have 1 to 255 bytes"),
        ("schedule('orders', '1', now(), key => E'a\\nb')", "without control characters"),
        ("schedule('orders', '1', now(), key => U&'a\\0085b')", "without control characters"),
        ("schedule('orders', '1', now(), on_conflict => 'ignore')", "on_conflict must be keep"),
        ("schedule('orders', '1', now(), on_conflict => null)", "on_conflict must be keep"),
        ("schedule('orders', '1', now(), on_running => 'wait')", "on_running must be refuse"),
        ("schedule('orders', '1', now(), on_running => null)", "on_running must be refuse"),
        ("schedule('orders', '1', now(), id => '17')", "invalid input syntax for type uuid"),
        (
            "schedule('orders', '1', now(), headers => '{\"a\": 1}')",
            "headers must be a JSON object",
        ),
        ("schedule('orders', '1', now(), headers => 'null')", "headers must be a JSON object"),
        ("schedule('orders', '1', now(), max_attempts => 0)", "max_attempts must be from 1"),
        (
            "schedule('orders', '1', now(), max_attempts => 4294967296)",
            "max_attempts must be from 1",
        ),
        ("schedule('orders', '1', now(), remember => '-1 s')", "remember must be from 0 to"),
        ("schedule('orders', '1', now(), remember => '10001 years')", "remember must be from 0 to"),
        ("cancel('orders')", "name the job by key or by id"),
        ("cancel(null, 'key')", "dq: queue must have 1 to 128 bytes"),
        ("cancel('orders', '')", "key must have 1 to 255 bytes"),
        ("get('orders', 'key', gen_random_uuid())", "name the job by key or by id"),
        ("get(null, 'key')", "dq: queue must have 1 to 128 bytes"),
        ("get('orders', '')", "key must have 1 to 255 bytes"),
        ("reschedule('orders', null, 'key')", "due must not be null"),
        ("reschedule('orders', 'infinity', 'key')", "due must be from 1970 to 9999"),
        ("reschedule('orders', localtimestamp, 'key')", "timestamp without time zone"),
        ("reschedule('orders', now())", "name the job by key or by id"),
        ("reschedule(null, now(), 'key')", "dq: queue must have 1 to 128 bytes"),
    ] {
        let error = client.batch_execute(&format!("SELECT dq.{call}")).await.unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert!(message.contains(words), "{call}: {message}");
    }
    // Drivers bind text. Some refuse NUL before they send it.
    let schedule = "SELECT dq.schedule('orders', '1', now(), key => $1)";
    let error = client.execute(schedule, &[&"a\0b"]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE));
    assert_eq!(backend.stats(&[]).await.unwrap(), []);
}
