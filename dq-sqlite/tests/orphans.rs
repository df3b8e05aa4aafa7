//! Entries without a job row: another program has deleted jobs from the table.

use crate::common::{Fixture, MINUTE, claim, open_store, queue};
use dq_core::{
    Backend, Cancelled, ClaimParams, Due, JobRef, NewJob, OnConflict, Operation, QueueName,
    Reschedule, Rescheduled, Scheduled, Want,
};
use dq_sqlite::SqliteBackend;

fn delete_job_row(fixture: &Fixture, job: &NewJob) {
    let conn = fixture.conn();
    let deleted = conn.execute("DELETE FROM dq_job WHERE id = ?1", [job.id.to_bytes()]).unwrap();
    assert_eq!(deleted, 1);
}

/// Schedules a job and breaks it with `sql`, which gets the job's `seq` as `?1`.
async fn broken_job(fixture: &Fixture, backend: &SqliteBackend, sql: &str) -> NewJob {
    let job = fixture.keyed("key", MINUTE);
    let _ = backend.schedule(vec![job.clone()]).await.unwrap();
    let conn = fixture.conn();
    let seq = "SELECT seq FROM dq_job WHERE id = ?1";
    let seq: i64 = conn.query_row(seq, [job.id.to_bytes()], |row| row.get(0)).unwrap();
    assert_eq!(conn.execute(sql, [seq]).unwrap(), 1);
    job
}

const BREAKS: [&str; 2] =
    ["DELETE FROM dq_due WHERE seq = ?1", "UPDATE dq_job SET due = due + 1 WHERE seq = ?1"];

#[tokio::test]
async fn a_lease_without_its_job_is_dropped_when_it_expires() {
    let (fixture, backend) = open_store().await;
    let job = fixture.job(Due::NOW);
    let _ = backend.schedule(vec![job.clone()]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    delete_job_row(&fixture, &job);
    fixture.clock.advance(MINUTE);
    backend.close().await.unwrap();
    let backend = fixture.open().await;

    let other = QueueName::new("other").unwrap();
    let mut unrelated = fixture.job(Due::NOW);
    unrelated.queue = other.clone();
    assert!(backend.schedule(vec![unrelated]).await.unwrap()[0].is_stored());
    assert!(claim(&backend, 1).await.jobs.is_empty());
    let wants = [Want::new(other, 1, MINUTE)];
    let params = ClaimParams::new(&wants, 1, "test");
    assert_eq!(backend.claim(params).await.unwrap().jobs.len(), 1);
    assert_eq!(fixture.integer("SELECT count(*) FROM dq_lease"), 1, "only that of the other queue");
}

#[tokio::test]
async fn waiting_entries_without_their_job_are_dropped_by_a_claim() {
    let (fixture, backend) = open_store().await;
    let jobs: Vec<NewJob> = (0..5).map(|_| fixture.job(Due::NOW)).collect();
    let later = fixture.job(MINUTE);
    let _ = backend.schedule(jobs.clone()).await.unwrap();
    let _ = backend.schedule(vec![later.clone()]).await.unwrap();
    for orphaned in [&jobs[0], &jobs[1], &jobs[4], &later] {
        delete_job_row(&fixture, orphaned);
    }

    // The first two entries are orphaned; a claim for one job still gets one.
    let first = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!(first.job.id, jobs[2].id);
    let rest = claim(&backend, 9).await;
    assert_eq!(rest.jobs.iter().map(|leased| leased.job.id).collect::<Vec<_>>(), [jobs[3].id]);
    assert!(rest.next_due.is_some_and(|due| due > rest.now), "nothing is due: {rest:?}");
    assert_eq!(backend.stats(&[queue()]).await.unwrap()[0].ready, 0);

    fixture.clock.advance(MINUTE);
    // Jobs with expired leases are due again; the deleted job's entry is not.
    assert_eq!(claim(&backend, 9).await.jobs.len(), 2);
    assert_eq!(fixture.integer("SELECT count(*) FROM dq_due"), 0);
}

#[tokio::test]
async fn a_purge_counts_only_jobs_that_exist() {
    let (fixture, backend) = open_store().await;
    let jobs = [fixture.job(Due::NOW), fixture.job(MINUTE)];
    let _ = backend.schedule(jobs.to_vec()).await.unwrap();
    delete_job_row(&fixture, &jobs[1]);
    let purge = Operation::Purge { queue: &queue() };
    assert_eq!(backend.operate(purge).await.unwrap().affected, 1);
    let removed = backend.stats(&[queue()]).await.unwrap()[0].totals.unwrap().removed;
    assert_eq!((removed, fixture.integer("SELECT count(*) FROM dq_due")), (1, 0));
    let _ = backend.schedule(vec![fixture.job(MINUTE)]).await.unwrap();
    assert_eq!(backend.stats(&[queue()]).await.unwrap()[0].scheduled, 1);
}

#[tokio::test]
async fn a_job_without_its_entry_can_be_cancelled_rescheduled_and_replaced() {
    for sql in BREAKS {
        for change in ["cancel", "reschedule", "replace"] {
            let (fixture, backend) = open_store().await;
            let job = broken_job(&fixture, &backend, sql).await;
            let target = JobRef::new(queue(), job.id);
            let other = fixture.keyed("key", MINUTE);
            let expected = match change {
                "cancel" => {
                    let cancelled = backend.cancel(&[target]).await.unwrap();
                    assert_eq!(cancelled, [Cancelled::Cancelled], "{sql}");
                    assert_eq!(fixture.integer("SELECT count(*) FROM dq_job"), 0, "{sql}");
                    None
                }
                "reschedule" => {
                    let later = Reschedule { job: target, due: MINUTE.into() };
                    let moved = backend.reschedule(&[later]).await.unwrap();
                    assert!(matches!(moved[..], [Rescheduled::Moved(_)]), "{sql}: {moved:?}");
                    Some(job.id)
                }
                _ => {
                    let other = other.on_conflict(OnConflict::Replace);
                    let id = other.id;
                    let replaced = backend.schedule(vec![other]).await.unwrap();
                    assert!(matches!(replaced[..], [Scheduled::Replaced(_)]), "{sql}");
                    Some(id)
                }
            };
            fixture.clock.advance(2 * MINUTE);
            let claimed = claim(&backend, 9).await.jobs;
            let claimed: Vec<_> = claimed.iter().map(|leased| leased.job.id).collect();
            assert_eq!(claimed, Vec::from_iter(expected), "{change} after {sql}");
            assert_eq!(fixture.integer("SELECT count(*) FROM dq_due"), 0, "{change} after {sql}");
        }
    }
}
