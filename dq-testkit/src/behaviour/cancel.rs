//! Cancels: after `Cancelled` the job never starts.
//!
//! `targets` tests which jobs a cancel finds.

use dq_core::{Cancelled, Due};

use super::client::Counts;
use super::failure::{Failure, TrialResult, ensure_eq};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "cancel":
    cancelled_job_never_starts [cancel],
    job_that_waits_to_run_again_is_cancelled [cancel],
    concurrent_cancels_succeed_once [cancel],
}

async fn cancelled_job_never_starts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let soon = store.create(store.job(&queue, SOON)).await?;
    let later = store.create(store.job(&queue, LATER)).await?;
    let ready = store.create(store.job(&queue, Due::NOW)).await?;
    let kept = store.create(store.job(&queue, LATER)).await?;
    for job in [soon, later, ready] {
        ensure_eq!(store.cancel(&queue, job.id).await?, Cancelled::Cancelled, "a waiting job");
    }
    store.expect_counts(&queue, Counts::scheduled(1), "after cancel").await?;
    store.wait_until(soon.due + SOON).await?;
    store.expect_empty_claim(&queue, "after `Cancelled` the job never starts").await?;
    ensure_eq!(store.stats(&queue).await?.next_due, Some(kept.due), "the other job is left");
    Ok(())
}

async fn job_that_waits_to_run_again_is_cancelled(store: TrialStore) -> TrialResult {
    for verdict in store.verdicts_to_run_again(LATER) {
        let queue = store.queue();
        let id = store.run_job(store.job(&queue, Due::NOW), verdict.clone()).await?.id;
        let answer = store.cancel(&queue, id).await?;
        ensure_eq!(answer, Cancelled::Cancelled, "a job that waits after {verdict:?}");
        store.expect_counts(&queue, Counts::NONE, "after cancel").await?;
    }
    Ok(())
}

async fn concurrent_cancels_succeed_once(store: TrialStore) -> TrialResult {
    for _ in 0..5 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, LATER)).await?.id;
        let callers = (0..4).map(|_| {
            let (client, queue) = (store.client(), queue.clone());
            tokio::spawn(async move { client.cancel(&queue, id).await })
        });
        let mut cancelled = 0;
        for caller in callers.collect::<Vec<_>>() {
            cancelled += usize::from(caller.await.map_err(Failure::new)?? == Cancelled::Cancelled);
        }
        ensure_eq!(cancelled, 1, "one of several concurrent cancels succeeds");
    }
    Ok(())
}
