//! Pauses: a paused queue is not claimed; all other calls work.

use dq_core::{Due, Operation, QueueName};

use super::client::{BRIEF_LEASE, Counts, want};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{SOON, TrialStore};
use super::trial::topic;

topic! { "pause":
    paused_queue_is_not_claimed [pause],
    expired_job_of_a_paused_queue_waits [pause],
}

async fn paused_queue_is_not_claimed(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let soon = store.create(store.job(&queue, SOON)).await?;
    pause(&store, &queue).await?;
    store.expect_empty_claim(&queue, "the queue is paused").await?;
    store.wait_until(soon.due).await?;
    let claimed = store.claim(&[want(&queue, 5)]).await?;
    ensure!(claimed.jobs.is_empty(), "a paused queue is not claimed");
    ensure_eq!(claimed.next_due, None, "a paused queue has no next due time");
    store.expect_counts(&queue, Counts::ready(2), "while the queue is paused").await?;
    let purged = store.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(purged, 2, "a paused queue can be purged");
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    store.expect_empty_claim(&queue, "the queue is still paused after a purge").await?;
    resume(&store, &queue).await?;
    ensure_eq!(store.lease_one(&queue).await?.job.id, id, "a resumed queue is claimed at once");
    Ok(())
}

async fn expired_job_of_a_paused_queue_waits(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, BRIEF_LEASE).await?;
    pause(&store, &queue).await?;
    store.wait_until(lost.leased_until).await?;
    store.expect_empty_claim(&queue, "the queue is paused for expired jobs too").await?;
    resume(&store, &queue).await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.deliveries, job.losses), (2, 1), "the expiry is counted");
    Ok(())
}

async fn pause(store: &TrialStore, queue: &QueueName) -> TrialResult<u64> {
    store.operate(Operation::Pause { queue }).await
}

async fn resume(store: &TrialStore, queue: &QueueName) -> TrialResult<u64> {
    store.operate(Operation::Resume { queue }).await
}
