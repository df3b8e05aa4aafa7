//! Opens foreign, full and locked files.

mod common;

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use common::{Fixture, claim, queue, settle, stats};
use dq_core::{Backend, Due, ErrorKind, JobRef, Severity, Verdict};
use dq_sqlite::rusqlite::Connection;
use dq_sqlite::{Durability, SqliteBackend, SqliteConfig};

#[tokio::test]
async fn jobs_tokens_and_totals_survive_reopening() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let (stays, runs) = (fixture.keyed("stays", Duration::from_secs(1)), fixture.job(Due::NOW));
    let _ = backend.schedule(vec![stays.clone(), runs]).await.unwrap();
    let first = claim(&backend, 1).await.jobs.remove(0);
    backend.close().await.unwrap();

    let backend = fixture.open().await;
    // The lease survives, too: any process with its token can settle it.
    settle(&backend, &first, Verdict::retry(Due::NOW, "a reason")).await;
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
    let conn = Connection::open(fixture.path()).unwrap();
    conn.execute_batch(
        "PRAGMA application_id = 7; PRAGMA user_version = 42; CREATE TABLE orders (id)",
    )
    .unwrap();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((pragma("application_id"), pragma("user_version")), (7, 42));
    let findings = backend.check().await;
    assert!(findings.iter().any(|finding| finding.code == "sqlite.never-shrinks"));
}

#[tokio::test]
async fn foreign_tables_with_the_same_names_are_refused_and_another_prefix_works() {
    let fixture = Fixture::new();
    let conn = Connection::open(fixture.path()).unwrap();
    conn.execute_batch("CREATE TABLE dq_meta (x); CREATE TABLE dq_job (x)").unwrap();
    let mut config = fixture.config();
    assert_eq!(fixture.open_error(&config).await.kind(), ErrorKind::Incompatible);
    config.table_prefix = "jobs_".to_owned();
    let backend = SqliteBackend::open(&config, &fixture.environment()).await.unwrap();
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    assert_eq!(stats(&backend).await.ready, 1);
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
    let mut config = fixture.config();
    config.size_limit_mib = Some(1);
    let backend = SqliteBackend::open(&config, &fixture.environment()).await.unwrap();
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
    let mut config = fixture.config();
    config.busy_timeout = Duration::from_millis(1);
    let backend = SqliteBackend::open(&config, &fixture.environment()).await.unwrap();
    let other = Connection::open(fixture.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(stats(&backend).await.stored(), 0);
    other.execute_batch("COMMIT").unwrap();
    assert!(backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap()[0].is_stored());
}

#[tokio::test]
async fn check_reports_relaxed_durability() {
    let fixture = Fixture::new();
    let mut config = fixture.config();
    config.durability = Durability::Relaxed;
    let backend = SqliteBackend::open(&config, &fixture.environment()).await.unwrap();
    let findings = backend.check().await;
    let relaxed = findings.iter().find(|finding| finding.code == "sqlite.relaxed-durability");
    assert_eq!(relaxed.unwrap().severity, Severity::Info);
}

#[tokio::test]
async fn an_invalid_queue_name_is_reported_and_does_not_affect_other_queues() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let conn = Connection::open(fixture.path()).unwrap();
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

#[tokio::test]
async fn settings_out_of_range_are_refused_by_name() {
    let fixture = Fixture::new();
    let day = Duration::from_secs(86_400);
    for (setting, range, change) in [
        (
            "busy_timeout",
            "24h",
            (|config: &mut SqliteConfig, day| config.busy_timeout = 30 * day)
                as fn(&mut SqliteConfig, Duration),
        ),
        ("size_limit_mib", "1 to", |config, _| config.size_limit_mib = Some(0)),
        ("size_limit_mib", "1 to", |config, _| config.size_limit_mib = Some(u32::MAX)),
        ("cache_mib", "1 to", |config, _| config.cache_mib = 0),
        ("cache_mib", "1 to", |config, _| config.cache_mib = u32::MAX),
    ] {
        let mut config = fixture.config();
        change(&mut config, day);
        let error = fixture.open_error(&config).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains(setting), "{error}");
        assert!(error.remedy_text().unwrap().contains(range), "{error}");
    }
    assert!(!fixture.path().exists());
}
