//! The stored history and its limits.

use std::time::Duration;

use crate::common::{Fixture, MINUTE, claim, queue, settle, stats};
use dq_core::{
    Backend, BrowseParams, Due, HistoryLimit, HistoryLimits, JobState, NewJob, Scheduled,
    Settlement, Verdict,
};
use dq_sqlite::rusqlite::types::Null;
use dq_sqlite::rusqlite::{TransactionBehavior, params};
use dq_sqlite::{SCHEDULE_SQL, SqliteBackend};

async fn open(fixture: &Fixture, max: u32) -> SqliteBackend {
    let limits = HistoryLimits::all(HistoryLimit::new(max, 60 * MINUTE));
    let environment = fixture.environment().history(limits);
    SqliteBackend::open(&fixture.config(), &environment).await.unwrap()
}

async fn run(fixture: &Fixture, backend: &SqliteBackend, count: usize) {
    let jobs = (0..count).map(|_| fixture.job(Due::NOW)).collect();
    let _ = backend.schedule(jobs).await.unwrap();
    let leased = claim(backend, count).await.jobs;
    let done = leased.iter().map(|job| Settlement::new(job.lease(), Verdict::Done));
    backend.settle(&done.collect::<Vec<_>>()).await.unwrap();
}

fn count(fixture: &Fixture, table: &str) -> i64 {
    fixture.integer(&format!("SELECT count(*) FROM dq_{table}"))
}

async fn listed(backend: &SqliteBackend) -> usize {
    let queue = queue();
    let params = BrowseParams::new(&queue, JobState::Ended).limit(1_000);
    backend.browse(params).await.unwrap().jobs.len()
}

#[tokio::test]
async fn nothing_is_written_without_history_and_pins() {
    for limits in [HistoryLimits::default(), HistoryLimits::all(HistoryLimit::OFF)] {
        let fixture = Fixture::new();
        let environment = fixture.environment().history(limits);
        let backend = SqliteBackend::open(&fixture.config(), &environment).await.unwrap();
        run(&fixture, &backend, 20).await;
        for table in ["ended", "note", "pin", "job", "lease"] {
            assert_eq!(count(&fixture, table), 0, "{table}");
        }
    }
}

#[tokio::test]
async fn a_process_without_the_setting_shows_the_history_of_others_and_leaves_it_alone() {
    let fixture = Fixture::new();
    let writer = open(&fixture, 900).await;
    run(&fixture, &writer, 100).await;
    let environment = fixture.environment().history(HistoryLimits::default());
    let other = SqliteBackend::open(&fixture.config(), &environment).await.unwrap();
    run(&fixture, &other, 3).await;
    assert_eq!((listed(&other).await, listed(&writer).await), (100, 100));
    assert_eq!(count(&fixture, "ended"), 100);
}

#[tokio::test]
async fn a_lowered_limit_is_shown_at_once_and_reached_in_steps() {
    for limit in [10, 0] {
        let fixture = Fixture::new();
        let backend = open(&fixture, 900).await;
        run(&fixture, &backend, 900).await;
        backend.close().await.unwrap();

        let backend = open(&fixture, limit).await;
        assert_eq!((listed(&backend).await, count(&fixture, "ended")), (limit as usize, 900));
        run(&fixture, &backend, 1).await;
        let mut left = count(&fixture, "ended");
        assert!(left > 10, "a short transaction deletes a few rows: {left} are left");
        while left > i64::from(limit) {
            run(&fixture, &backend, 1).await;
            let now_left = count(&fixture, "ended");
            assert!(now_left < left, "{left} are left");
            left = now_left;
        }
        assert_eq!(listed(&backend).await, limit as usize);

        // The stored count matches the rows, so that a later limit holds.
        backend.close().await.unwrap();
        let backend = open(&fixture, 10).await;
        run(&fixture, &backend, 20).await;
        assert_eq!((listed(&backend).await, count(&fixture, "ended")), (10, 10));
    }
}

#[tokio::test]
async fn rows_beyond_the_age_are_deleted_by_later_ends() {
    let fixture = Fixture::new();
    let backend = open(&fixture, 900).await;
    run(&fixture, &backend, 30).await;
    fixture.clock.advance(61 * MINUTE);
    assert_eq!(listed(&backend).await, 0);
    run(&fixture, &backend, 1).await;
    assert_eq!((listed(&backend).await, count(&fixture, "ended")), (1, 1));
}

#[tokio::test]
async fn pins_that_have_ended_are_deleted_by_later_ones() {
    let fixture = Fixture::new();
    let backend = open(&fixture, 0).await;
    let jobs: Vec<NewJob> = (0..3).map(|_| fixture.job(Due::NOW).remember(MINUTE)).collect();
    let _ = backend.schedule(jobs.clone()).await.unwrap();
    for leased in claim(&backend, 2).await.jobs {
        settle(&backend, &leased, Verdict::Done).await;
    }
    assert_eq!((count(&fixture, "pin"), count(&fixture, "note")), (2, 1));
    fixture.clock.advance(MINUTE);
    let last = claim(&backend, 1).await.jobs.remove(0);
    settle(&backend, &last, Verdict::Done).await;
    assert_eq!((count(&fixture, "pin"), count(&fixture, "note")), (1, 0));
    let scheduled = backend.schedule(jobs).await.unwrap();
    let ended = scheduled.iter().filter(|answer| matches!(answer, Scheduled::Ended(_)));
    assert_eq!(ended.count(), 1);
}

#[tokio::test]
async fn scheduling_in_a_transaction_and_in_sql_respects_pins_and_the_history() {
    // The SQL statement compares pins with the machine's clock.
    for (max, remember) in [(0, MINUTE * 60 * 24 * 365 * 100), (10, Duration::ZERO)] {
        let fixture = Fixture::new();
        let backend = open(&fixture, max).await;
        let job = fixture.job(Due::NOW).remember(remember);
        let _ = backend.schedule(vec![job.clone()]).await.unwrap();
        let leased = claim(&backend, 1).await.jobs.remove(0);
        settle(&backend, &leased, Verdict::Done).await;
        let mut conn = fixture.conn();
        let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let scheduled = backend.schedule_in(&transaction, vec![job.clone()]).unwrap();
        assert!(matches!(scheduled[..], [Scheduled::Ended(_)]), "limit {max}: {scheduled:?}");
        let id = job.id.to_bytes();
        let values = params!["mail", id, Null, 0, "{}", Null, Null];
        transaction.execute(SCHEDULE_SQL, values).unwrap();
        transaction.commit().unwrap();
        assert_eq!(stats(&backend).await.stored(), 0, "limit {max}");
    }
}

#[tokio::test]
async fn a_job_that_a_process_with_a_shorter_history_stored_again_is_found() {
    let fixture = Fixture::new();
    let (backend, shorter) = (open(&fixture, 10).await, open(&fixture, 0).await);
    let job = fixture.job(Due::NOW);
    let _ = backend.schedule(vec![job.clone()]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    settle(&backend, &leased, Verdict::Done).await;
    let again = backend.schedule(vec![job.clone()]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "{again:?}");
    for backend in [&shorter, &backend] {
        let again = backend.schedule(vec![job.clone()]).await.unwrap();
        assert!(matches!(again[..], [Scheduled::Created(_)]), "{again:?}");
    }
    assert_eq!(count(&fixture, "job"), 1);
}
