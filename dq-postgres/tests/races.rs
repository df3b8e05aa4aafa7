//! Calls that meet another transaction's changes.

use std::time::Duration;

use dq_core::{Backend, Cancelled, Due, JobKey, JobRef, Target};

use crate::common::{claim, client, connect, database, job, queue};

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
