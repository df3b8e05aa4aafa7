//! What may lie at the path, and what the answer is.

mod common;

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use common::{Bed, claim, queue, settle, stats};
use dq_core::{
    Backend, DeadKind, Due, ErrorKind, JobRef, JobState, NewJob, Operation, Severity, Verdict,
};
use dq_sqlite::rusqlite::Connection;
use dq_sqlite::{Durability, SqliteBackend, SqliteConfig};

#[tokio::test]
async fn jobs_tokens_and_totals_survive_reopening() {
    let bed = Bed::new();
    let backend = bed.open().await;
    let (stays, runs) = (bed.keyed("stays", Duration::from_secs(1)), bed.job(Due::NOW));
    let _ = backend.schedule(vec![stays.clone(), runs]).await.unwrap();
    let first = claim(&backend, 1).await.jobs.remove(0);
    backend.close().await.unwrap();

    let backend = bed.open().await;
    // The lease survives too, and can be settled by whoever holds its token.
    settle(&backend, &first, Verdict::Retry(Due::NOW)).await;
    let second = claim(&backend, 1).await.jobs.remove(0);
    assert!(second.token > first.token);
    assert_eq!((second.job.attempts, second.job.deliveries), (1, 2));
    settle(&backend, &second, Verdict::Done).await;
    let stats = stats(&backend).await;
    assert_eq!((stats.scheduled, stats.totals.unwrap().done), (1, 1));
    let view = backend.get(&JobRef::new(queue(), stays.key.unwrap())).await.unwrap().unwrap();
    assert_eq!(view.job.id, stays.id);
}

#[tokio::test]
async fn an_older_format_is_brought_up_to_date_with_all_its_jobs() {
    let bed = Bed::new();
    let conn = Connection::open(bed.path()).unwrap();
    conn.execute_batch(include_str!("fixtures/format-1.sql")).unwrap();
    drop(conn);

    let backend = bed.open().await;
    let stats = stats(&backend).await;
    assert_eq!((stats.ready, stats.dead), (1, 1));
    let job = claim(&backend, 9).await.jobs.remove(0);
    assert_eq!(job.job.key.as_ref().unwrap().as_str(), "order-1");
    assert_eq!(job.token.0, 8);
    let replay = Operation::Replay { queue: &queue(), jobs: None, due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 1);
    let revived = claim(&backend, 9).await.jobs.remove(0);
    assert_eq!(&revived.job.payload[..], [0, 255]);
    // What the newer format brought is there.
    let conn = Connection::open(bed.path()).unwrap();
    let listed: i64 =
        conn.query_row("SELECT count(*) FROM dq_schedule_v1", [], |row| row.get(0)).unwrap();
    assert_eq!(listed, 2);
}

#[tokio::test]
async fn a_newer_format_is_refused_at_opening_and_while_open() {
    let bed = Bed::new();
    let backend = bed.open().await;
    let conn = Connection::open(bed.path()).unwrap();
    conn.execute("UPDATE dq_meta SET format = 1000", []).unwrap();
    let error = backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let error = bed.refused(&bed.config()).await;
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.message().contains("1000"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let bed = Bed::new();
    let text = "dear diary, ".repeat(1_000);
    fs::write(bed.path(), &text).unwrap();
    let error = bed.refused(&bed.config()).await;
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.message().contains("jobs.db"), "{error}");
    assert_eq!(fs::read_to_string(bed.path()).unwrap(), text);
}

#[tokio::test]
async fn the_tables_live_beside_those_of_the_user() {
    let bed = Bed::new();
    let conn = Connection::open(bed.path()).unwrap();
    conn.execute_batch(
        "PRAGMA application_id = 7; PRAGMA user_version = 42; CREATE TABLE orders (id)",
    )
    .unwrap();
    let backend = bed.open().await;
    let _ = backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((pragma("application_id"), pragma("user_version")), (7, 42));
    let findings = backend.check().await;
    assert!(findings.iter().any(|finding| finding.code == "sqlite.never-shrinks"));
}

#[tokio::test]
async fn tables_of_the_users_under_our_names_are_refused_and_another_prefix_helps() {
    let bed = Bed::new();
    let conn = Connection::open(bed.path()).unwrap();
    conn.execute_batch("CREATE TABLE dq_meta (format TEXT); CREATE TABLE dq_job (x)").unwrap();
    let mut config = bed.config();
    assert_eq!(bed.refused(&config).await.kind(), ErrorKind::Incompatible);
    config.table_prefix = "jobs_".to_owned();
    let backend = SqliteBackend::open(&config, &bed.environment()).await.unwrap();
    let _ = backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap();
    assert_eq!(stats(&backend).await.ready, 1);
}

#[tokio::test]
async fn paths_that_cannot_be_files_are_refused() {
    let bed = Bed::new();
    let missing = SqliteConfig::new(bed.dir.path().join("nowhere").join("jobs.db"));
    let error = bed.refused(&missing).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("nowhere"), "{error}");
    let directory = SqliteConfig::new(bed.dir.path());
    assert_eq!(bed.refused(&directory).await.kind(), ErrorKind::Config);
    assert_eq!(bed.refused(&SqliteConfig::new("")).await.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_full_file_is_said_to_be_full_and_can_be_drained() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.size_limit_mib = Some(1);
    let backend = SqliteBackend::open(&config, &bed.environment()).await.unwrap();
    let large = || NewJob { payload: Bytes::from(vec![7; 100_000]), ..bed.job(Due::NOW) };
    let mut stored = 0;
    let error = loop {
        match backend.schedule(vec![large()]).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.is_retryable() && error.remedy_text().is_some());
    assert_eq!(stats(&backend).await.ready, stored);

    let leased = claim(&backend, 2).await.jobs;
    for job in &leased {
        settle(&backend, job, Verdict::Done).await;
    }
    assert!(backend.schedule(vec![large()]).await.unwrap()[0].is_stored());
    assert_eq!(stats(&backend).await.ready, stored - 1);
}

#[tokio::test]
async fn a_locked_file_is_unavailable_after_the_timeout() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.busy_timeout = Duration::from_millis(1);
    let backend = SqliteBackend::open(&config, &bed.environment()).await.unwrap();
    let other = Connection::open(bed.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Looking does not wait for writing.
    assert_eq!(stats(&backend).await.stored(), 0);
    other.execute_batch("COMMIT").unwrap();
    assert!(backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap()[0].is_stored());
}

#[tokio::test]
async fn findings_name_relaxed_durability() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.durability = Durability::Relaxed;
    let backend = SqliteBackend::open(&config, &bed.environment()).await.unwrap();
    let findings = backend.check().await;
    let relaxed = findings.iter().find(|finding| finding.code == "sqlite.relaxed-durability");
    assert_eq!(relaxed.unwrap().severity, Severity::Info);
}

#[tokio::test]
async fn a_dead_job_read_through_a_new_process_names_its_reason() {
    let bed = Bed::new();
    let conn = Connection::open(bed.path()).unwrap();
    conn.execute_batch(include_str!("fixtures/format-1.sql")).unwrap();
    drop(conn);
    let backend = bed.open().await;
    let id = "01900000-0000-7000-8000-000000000002".parse::<dq_core::JobId>().unwrap();
    let view = backend.get(&JobRef::new(queue(), id)).await.unwrap().unwrap();
    assert_eq!(view.state, JobState::Dead);
    let (reason, _) = view.dead.unwrap();
    assert_eq!((reason.kind, reason.message.as_str()), (DeadKind::Exhausted, "no such host"));
    assert_eq!(view.job.headers.get("a"), Some("b"));
}

#[tokio::test]
async fn a_name_that_is_none_is_reported_and_leaves_the_others_alone() {
    let bed = Bed::new();
    let backend = bed.open().await;
    let _ = backend.schedule(vec![bed.job(Due::NOW)]).await.unwrap();
    let conn = Connection::open(bed.path()).unwrap();
    conn.execute_batch(
        "INSERT INTO dq_queue (name) VALUES ('mail' || char(10)), (CAST(x'ff' AS TEXT)), (x'00');
         INSERT INTO dq_job (seq, id, q, due, created, payload)
             SELECT 100 + q, randomblob(16), q, 1, 1, x'' FROM dq_queue WHERE q > 1;
         INSERT INTO dq_lease (seq, q, until, token, worker)
             SELECT seq, q, 1, 1, 'test' FROM dq_job WHERE q > 1;",
    )
    .unwrap();
    // Their leases have lapsed, so that every transaction meets them.
    assert_eq!(claim(&backend, 9).await.jobs.len(), 1);
    let all = backend.stats(&[]).await.unwrap();
    assert_eq!(all.iter().map(|stats| stats.queue.as_str()).collect::<Vec<_>>(), ["mail"]);
    let findings = backend.check().await;
    let names: Vec<_> =
        findings.iter().filter(|finding| finding.code == "sqlite.queue-name").collect();
    assert_eq!(names.len(), 3, "{findings:?}");
    assert!(names.iter().all(|finding| finding.severity == Severity::Error));
    assert!(names[0].cause.contains(r#""mail\n""#), "{}", names[0]);
}
