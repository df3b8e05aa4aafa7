//! Scheduling inside the application's own transactions.

use crate::common::{Fixture, MINUTE, claim, open_store, stats};
use dq_core::{Backend, ClaimParams, Due, ErrorKind, Headers, NewJob, QueueName, Scheduled, Want};
use dq_sqlite::SCHEDULE_SQL;
use dq_sqlite::rusqlite::types::Null;
use dq_sqlite::rusqlite::{Connection, TransactionBehavior, params};

fn open(fixture: &Fixture) -> Connection {
    let conn = fixture.conn();
    conn.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER)").unwrap();
    conn
}

#[tokio::test]
async fn the_job_exists_if_and_only_if_the_transaction_commits() {
    let (fixture, backend) = open_store().await;
    let mut conn = open(&fixture);
    for commit in [false, true] {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO orders VALUES (1)", []).unwrap();
        let scheduled = backend.schedule_in(&tx, vec![fixture.keyed("k", Due::NOW)]).unwrap();
        assert!(matches!(scheduled[0], Scheduled::Created(_)));
        assert_eq!(stats(&backend).await.stored(), 0, "before the commit");
        if commit { tx.commit() } else { tx.rollback() }.unwrap();
        assert_eq!(stats(&backend).await.stored(), u64::from(commit));
    }
    assert!(backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap()[0].is_stored());
    assert_eq!(claim(&backend, 9).await.jobs.len(), 2);
}

#[tokio::test]
async fn conflicts_and_invalid_jobs_leave_the_transaction_open() {
    let (fixture, backend) = open_store().await;
    let first = fixture.keyed("k", Due::NOW);
    let _ = backend.schedule(vec![first.clone()]).await.unwrap();
    let mut conn = open(&fixture);
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let scheduled = backend.schedule_in(&tx, vec![fixture.keyed("k", Due::NOW)]).unwrap();
    assert!(matches!(scheduled[0], Scheduled::Kept(kept) if kept.id == first.id));
    let large = fixture.job(Due::NOW).payload(vec![0; 2 << 20]);
    let mut reserved = fixture.job(Due::NOW);
    reserved.queue = QueueName::new("dq.schedules").unwrap();
    for invalid in [large, reserved] {
        let error = backend.schedule_in(&tx, vec![invalid]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    tx.execute("INSERT INTO orders VALUES (1)", []).unwrap();
    tx.commit().unwrap();
    assert_eq!(stats(&backend).await.stored(), 1);
}

#[tokio::test]
async fn plain_sql_schedules_with_the_same_rules() {
    let (fixture, backend) = open_store().await;
    assert_eq!(backend.schedule_sql(), SCHEDULE_SQL);
    let now = backend.now().await.unwrap().as_millis();
    let mut conn = open(&fixture);
    let schedule = |conn: &Connection, job: &NewJob, headers: Option<&str>| {
        let key = job.key.as_ref().map(|key| key.as_str());
        let id = job.id.to_bytes();
        conn.execute(SCHEDULE_SQL, params!["mail", id, key, now, "{}", headers, 3]).map(drop)
    };
    let tx = conn.transaction().unwrap();
    schedule(&tx, &fixture.job(Due::NOW), None).unwrap();
    tx.rollback().unwrap();
    assert_eq!(stats(&backend).await.stored(), 0);

    let first = fixture.keyed("k", Due::NOW);
    let tx = conn.transaction().unwrap();
    schedule(&tx, &first, Some(r#"{"a":"b"}"#)).unwrap();
    schedule(&tx, &fixture.keyed("k", Due::NOW), None).unwrap();
    schedule(&tx, &first, None).unwrap();
    schedule(&tx, &fixture.job(Due::NOW), None).unwrap();
    tx.commit().unwrap();
    let listed: Vec<u8> = conn
        .query_row("SELECT id FROM dq_schedule_v1 WHERE queue = 'mail' AND key = 'k'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(listed, first.id.to_bytes());

    let jobs = claim(&backend, 9).await.jobs;
    assert_eq!(jobs.len(), 2, "duplicates change nothing");
    let job = &jobs[0].job;
    assert_eq!((job.id, &job.payload[..], job.max_attempts), (first.id, &b"{}"[..], Some(3)));
    assert_eq!(job.headers, Headers::from_iter([("a", "b")]));
    assert_eq!(stats(&backend).await.totals.unwrap().created, 2);
}

#[tokio::test]
async fn plain_sql_refuses_invalid_values() {
    let (fixture, backend) = open_store().await;
    let conn = open(&fixture);
    let id = "x'01900000000070008000000000000001'";
    for (word, values) in [
        ("queue", format!("'', {id}, NULL, 1, x'', NULL, NULL")),
        ("queue", format!("NULL, {id}, NULL, 1, x'', NULL, NULL")),
        ("id", "'q', x'01', NULL, 1, x'', NULL, NULL".to_owned()),
        ("id", "'q', NULL, NULL, 1, x'', NULL, NULL".to_owned()),
        ("key", format!("'q', {id}, '', 1, x'', NULL, NULL")),
        ("due", format!("'q', {id}, NULL, '1', x'', NULL, NULL")),
        ("due", format!("'q', {id}, NULL, 1.5, x'', NULL, NULL")),
        ("due", format!("'q', {id}, NULL, 999999999999999, x'', NULL, NULL")),
        ("payload", format!("'q', {id}, NULL, 1, NULL, NULL, NULL")),
        ("headers", format!("'q', {id}, NULL, 1, x'', 1, NULL")),
        ("headers", format!("'q', {id}, NULL, 1, x'', 'nonsense', NULL")),
        ("headers", format!("'q', {id}, NULL, 1, x'', '[]', NULL")),
        ("headers", format!(r#"'q', {id}, NULL, 1, x'', '{{"a":1}}', NULL"#)),
        ("headers", format!("'q', {id}, NULL, 1, x'', '{{}}' || char(0), NULL")),
        ("max_attempts", format!("'q', {id}, NULL, 1, x'', NULL, 0")),
    ] {
        assert_refused(&conn, word, &values);
    }
    assert!(backend.stats(&[]).await.unwrap().is_empty());
}

fn assert_refused(conn: &Connection, word: &str, values: &str) {
    let sql = format!(
        "INSERT INTO dq_schedule_v1 (queue, id, key, due, payload, headers, max_attempts) \
         VALUES ({values})"
    );
    let error = conn.execute(&sql, []).expect_err(values).to_string();
    assert!(error.starts_with(&format!("dq: {word}")), "{values}: {error}");
}

#[tokio::test]
async fn plain_sql_refuses_invalid_names() {
    let (fixture, backend) = open_store().await;
    let conn = open(&fixture);
    let id = "x'01900000000070008000000000000001'";
    let controls = ["char(0)", "char(1)", "char(10)", "char(31)", "char(127)", "char(133)"];
    let controls = controls.map(|control| format!("'a' || {control} || 'b'"));
    // Truncated, stray, overlong, a surrogate, beyond U+10FFFF, too many continuation bytes.
    let invalid_utf8 = [
        "61ff", "80", "c3", "f09f98", "61c3c3a9", "c0af", "e09fbf", "eda080", "f4908080", "c3a980",
    ]
    .map(|bytes| format!("CAST(x'{bytes}' AS TEXT)"));
    for name in controls.iter().chain(&invalid_utf8) {
        assert_refused(&conn, "queue", &format!("{name}, {id}, NULL, 1, x'', NULL, NULL"));
        assert_refused(&conn, "key", &format!("'q', {id}, {name}, 1, x'', NULL, NULL"));
    }
    assert!(backend.stats(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn plain_sql_accepts_every_valid_name() {
    let (fixture, backend) = open_store().await;
    let conn = open(&fixture);
    let long = "ü".repeat(64);
    let names =
        ["]^-*?[", "größe €😀", "\u{a0}\u{7ff}\u{800}\u{d7ff}\u{e000}\u{fffd}\u{10ffff}", &long];
    for name in names {
        let values = params![name, fixture.job(Due::NOW).id.to_bytes(), name, 1, "", "{}", Null];
        conn.execute(SCHEDULE_SQL, values).unwrap();
        let queue = QueueName::new(name).unwrap();
        let wants = [Want::new(queue, 1, MINUTE)];
        let params = ClaimParams::new(&wants, 1, "test");
        let job = backend.claim(params).await.unwrap().jobs.remove(0).job;
        assert_eq!(job.key.unwrap().as_str(), name);
    }
}

#[tokio::test]
async fn the_statement_contains_the_table_prefix() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.table_prefix = "x_".to_owned()).await;
    let conn = open(&fixture);
    let id = fixture.job(Due::NOW).id.to_bytes();
    conn.execute(&backend.schedule_sql(), params!["mail", id, Null, 1, "", Null, Null]).unwrap();
    assert_eq!(stats(&backend).await.ready, 1);
}
