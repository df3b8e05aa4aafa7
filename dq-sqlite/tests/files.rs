//! Opens foreign, full and locked files.

use std::fs;
use std::time::Duration;

use crate::common::{Fixture, claim, open_store, settle, stats};
use bytes::Bytes;
use dq_core::{Backend, Due, ErrorKind, Severity, Verdict};
use dq_sqlite::SqliteConfig;

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused_and_unchanged() {
    let fixture = Fixture::new();
    let text = "dear diary, ".repeat(1_000);
    fs::write(fixture.path(), &text).unwrap();
    let error = fixture.open_error(&fixture.config()).await;
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.message().contains("jobs.db"), "{error}");
    assert_eq!(fs::read_to_string(fixture.path()).unwrap(), text);
}

#[tokio::test]
async fn the_tables_can_be_added_to_an_application_database() {
    let fixture = Fixture::new();
    let conn = fixture.conn();
    conn.execute_batch(
        "PRAGMA application_id = 7; PRAGMA user_version = 42; CREATE TABLE orders (id)",
    )
    .unwrap();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((pragma("application_id"), pragma("user_version")), (7, 42));
}

#[tokio::test]
async fn paths_that_are_not_files_are_refused() {
    let fixture = Fixture::new();
    let missing = SqliteConfig::new(fixture.dir.path().join("nowhere").join("jobs.db"));
    let error = fixture.open_error(&missing).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("nowhere"), "{error}");
    let directory = SqliteConfig::new(fixture.dir.path());
    assert_eq!(fixture.open_error(&directory).await.kind(), ErrorKind::Config);
    assert_eq!(fixture.open_error(&SqliteConfig::new("")).await.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_full_file_is_reported_as_full_and_can_be_drained() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.size_limit_mib = Some(1)).await;
    let large = || fixture.job(Due::NOW).payload(Bytes::from(vec![7; 100_000]));
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
async fn a_locked_file_is_unavailable_after_the_busy_timeout() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.busy_timeout = Duration::from_millis(1)).await;
    let other = fixture.conn();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(stats(&backend).await.stored(), 0);
    other.execute_batch("COMMIT").unwrap();
    assert!(backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap()[0].is_stored());
}

#[tokio::test]
async fn an_invalid_queue_name_is_reported_and_does_not_affect_other_queues() {
    let (fixture, backend) = open_store().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let conn = fixture.conn();
    conn.execute_batch(
        "INSERT INTO dq_queue (name) VALUES ('mail' || char(10)), (CAST(x'ff' AS TEXT)), (x'00');
         INSERT INTO dq_job (seq, id, q, due, created, payload)
             SELECT 100 + q, randomblob(16), q, 1, 1, x'' FROM dq_queue WHERE q > 1;
         INSERT INTO dq_lease (seq, q, until, token, worker, granted, since)
             SELECT seq, q, 1, 1, 'test', 0, 0 FROM dq_job WHERE q > 1;",
    )
    .unwrap();
    // Their leases have expired, so every transaction processes them.
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
