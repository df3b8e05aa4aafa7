//! Jobs that come to wait behind a claimer's bounds are found, in due order.

use std::time::Duration;

use dq_core::{Backend, Due, JobKey, LeasedJob, Receipt, Scheduled, Timestamp, Verdict};
use dq_postgres::PostgresBackend;
use dq_testkit::fixture::poll;

use crate::common::{claim, client, connect, database, job, settle};

fn ids(jobs: &[LeasedJob]) -> Vec<dq_core::JobId> {
    jobs.iter().map(|job| job.job.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_jobs_of_another_process_are_claimed_first() {
    let url = database().await;
    let (backend, other) = (connect(&url).await, connect(&url).await);
    let at = |millis: i64| Timestamp::from_millis(1_700_000_000_000 + millis);
    backend.schedule(vec![job(at(50)), job(at(60)), job(at(70))]).await.unwrap();
    let first = claim(&backend, 1).await;
    assert_eq!(first.jobs[0].job.due, at(50));
    let (late, later) = (job(at(20)), job(at(30)));
    let expected = [late.id, later.id];
    other.schedule(vec![later, late]).await.unwrap();
    assert_eq!(ids(&claim(&backend, 2).await.jobs), expected);
    // A job that another process hands back is due at its old time, too.
    let released = claim(&other, 1).await.jobs;
    assert_eq!(released[0].job.due, at(60));
    assert_eq!(claim(&backend, 1).await.jobs[0].job.due, at(70));
    settle(&other, &released, Verdict::Release { started: false }).await;
    assert_eq!(ids(&claim(&backend, 1).await.jobs), ids(&released));
}

/// The job's time passes, and other jobs are claimed, before its transaction commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_long_transaction_is_found_after_its_commit() {
    let url = database().await;
    let backend = connect(&url).await;
    backend.schedule(vec![job(Due::NOW)]).await.unwrap();
    let client = client(&url).await;
    client.batch_execute(&format!("BEGIN; {STORE_LATE}")).await.unwrap();
    assert_eq!(claim(&backend, 10).await.jobs.len(), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Claims until the bound has passed the job.
    let bound_passes = async || {
        backend.schedule(vec![job(Due::NOW)]).await.unwrap();
        claim(&backend, 10).await
    };
    for _ in 0..3 {
        assert_eq!(bound_passes().await.jobs.len(), 1);
    }
    client.batch_execute("COMMIT").await.unwrap();
    claim_late(&backend).await;
}

/// Stores a job that is due now.
const STORE_LATE: &str = "SELECT dq.store_new(ARRAY[gen_random_uuid()], 'orders', ARRAY[0], true, \
    null, null, null, ARRAY['late'::bytea])";

/// Claims until a full claim has found the job.
async fn claim_late(backend: &PostgresBackend) {
    let found = poll("a full claim", async || claim(backend, 10).await.jobs.pop()).await;
    assert_eq!(&found.job.payload[..], b"late");
}

/// Processes that begin at the queue's floors, which have passed a job before its transaction
/// commits, and a lease that has expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_finds_what_is_behind_the_floors() {
    let url = database().await;
    let earlier = connect(&url).await;
    earlier.schedule(vec![job(Due::After(Duration::from_secs(3_600)))]).await.unwrap();
    earlier.close().await.unwrap();
    let client = client(&url).await;
    let raise_floors = "SELECT dq.raise_floors(ARRAY['orders'], ARRAY[dq.now_ms() + 1000], \
        ARRAY[dq.now_ms() + 1000], ARRAY[last_value]) FROM dq.job_seq";
    client.batch_execute(&format!("{STORE_LATE}; {raise_floors}")).await.unwrap();
    claim_late(&connect(&url).await).await;
    let expire = "UPDATE dq.job SET at = dq.now_ms() - 1000 WHERE state = 1";
    client.batch_execute(&format!("{expire}; {raise_floors}")).await.unwrap();
    claim_late(&connect(&url).await).await;
}

/// The batch is sorted by key when it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_job_of_a_batch_takes_an_id() {
    let url = database().await;
    let backend = connect(&url).await;
    let at = |millis: i64| Timestamp::from_millis(1_700_000_000_000 + millis);
    for (first, second) in [("b", "a"), ("a", "b")] {
        let one = job(at(1)).key(JobKey::new(first).unwrap());
        let mut two = job(at(2)).key(JobKey::new(second).unwrap());
        two.id = one.id;
        let stored = backend.schedule(vec![one.clone(), two]).await.unwrap();
        let receipt = Scheduled::Created(Receipt { id: one.id, due: at(1) });
        assert_eq!(stored, [receipt, receipt]);
        let claimed = claim(&backend, 9).await.jobs;
        let found: Vec<_> = claimed.iter().map(|found| (&found.job.key, found.job.due)).collect();
        assert_eq!(found, [(&one.key, at(1))]);
        settle(&backend, &claimed, Verdict::Done).await;
    }
}
