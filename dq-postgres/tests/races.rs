//! Calls that meet another transaction's changes.

use std::time::Duration;

use dq_core::{Backend, Cancelled, Due, JobKey, JobRef, Renewal, Target, Verdict};

use crate::common::{LEASE, claim, client, connect, database, job, queue, settle};

/// The cancel waits for the old job, whose replacement it did not see at first.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_meets_a_replacement_cancels_the_new_job() {
    let url = database().await;
    let backend = connect(&url).await;
    let key = JobKey::new("order-17").unwrap();
    backend.schedule(vec![job(Due::NOW).key(key.clone())]).await.unwrap();
    let replacing = client(&url).await;
    replacing
        .batch_execute(
            "BEGIN; SELECT dq.schedule('orders', '1', now(), key => 'order-17', \
             on_conflict => 'replace')",
        )
        .await
        .unwrap();
    let target = [JobRef::new(queue(), Target::Key(key))];
    let (cancelled, committed) = tokio::join!(backend.cancel(&target), async {
        // The cancel is waiting for the lock by then; earlier, the test only shows less.
        tokio::time::sleep(Duration::from_millis(300)).await;
        replacing.batch_execute("COMMIT").await
    });
    committed.unwrap();
    assert_eq!(cancelled.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(claim(&backend, 10).await.jobs.len(), 0);
}

/// A deadlock would be repaired by the server after a second, and count in its statistics.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_and_settlements_in_opposite_orders_do_not_block_each_other() {
    let url = database().await;
    let backend = connect(&url).await;
    for _ in 0..10 {
        backend.schedule((0..500).map(|_| job(Due::NOW)).collect()).await.unwrap();
        let mut jobs = claim(&backend, 500).await.jobs;
        assert_eq!(jobs.len(), 500);
        let renewals: Vec<_> = jobs.iter().map(|job| Renewal::new(job.lease(), LEASE)).collect();
        jobs.reverse();
        let (renewed, ()) =
            tokio::join!(backend.renew(&renewals), settle(&backend, &jobs, Verdict::Done));
        renewed.unwrap();
    }
    let client = client(&url).await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(client.query_one(deadlocks, &[]).await.unwrap().get::<_, i64>(0), 0);
}
