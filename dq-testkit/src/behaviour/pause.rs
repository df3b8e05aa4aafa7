//! Pauses: a paused queue is not claimed; all other calls work.

use dq_core::{Due, Operation, QueueName, Renewed, Verdict};

use super::client::{Counts, LEASE, SHORT_LEASE, ids, want};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{SOON, TrialStore};
use super::trial::topic;

topic! { "pause":
    paused_queue_is_not_claimed [Pause],
    resumed_queue_is_claimed_at_once [Pause],
    paused_queue_accepts_jobs [Pause],
    running_jobs_of_a_paused_queue_finish [Pause],
    lapsed_job_of_a_paused_queue_waits [Pause],
    other_queues_are_not_paused [Pause],
    stats_show_the_pause [Pause],
    repeated_pause_changes_nothing [Pause],
    unknown_queue_can_be_paused [Pause],
    purged_queue_stays_paused [Pause],
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
    store.expect_counts(&queue, Counts::ready(2), "while the queue is paused").await
}

async fn resumed_queue_is_claimed_at_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    pause(&store, &queue).await?;
    store.expect_empty_claim(&queue, "the queue is paused").await?;
    resume(&store, &queue).await?;
    ensure_eq!(store.lease_one(&queue).await?.job.id, id, "a resumed queue is claimed at once");
    Ok(())
}

async fn paused_queue_accepts_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    pause(&store, &queue).await?;
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    store.expect_empty_claim(&queue, "the queue is paused").await?;
    resume(&store, &queue).await?;
    ensure_eq!(
        ids(&store.lease(&queue, 5).await?),
        [id],
        "jobs scheduled during the pause are kept"
    );
    Ok(())
}

async fn running_jobs_of_a_paused_queue_finish(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..3).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let claimed = store.lease(&queue, 3).await?;
    pause(&store, &queue).await?;
    let verdicts = [Verdict::Done, Verdict::retry(Due::NOW, "a reason"), Verdict::Snooze(Due::NOW)];
    for (leased, verdict) in claimed.iter().zip(verdicts) {
        ensure_matches!(
            store.renew(leased.lease(), LEASE).await?,
            Renewed::Until(_),
            "leases of a paused queue can be renewed"
        );
        store.settle_accepted(leased, verdict).await?;
    }
    store.expect_counts(&queue, Counts::ready(2), "after the running jobs were settled").await?;
    store.expect_empty_claim(&queue, "the queue is paused for retries too").await
}

async fn lapsed_job_of_a_paused_queue_waits(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, SHORT_LEASE).await?;
    pause(&store, &queue).await?;
    store.wait_until(lost.leased_until).await?;
    store.expect_empty_claim(&queue, "the queue is paused for lapsed jobs too").await?;
    resume(&store, &queue).await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.deliveries, job.losses), (2, 1), "the lapse is counted");
    Ok(())
}

async fn other_queues_are_not_paused(store: TrialStore) -> TrialResult {
    let (paused, other) = (store.queue(), store.queue());
    store.create(store.job(&paused, Due::NOW)).await?;
    let id = store.create(store.job(&other, Due::NOW)).await?.id;
    pause(&store, &paused).await?;
    let claimed = store.claim_at_most(1, &[want(&paused, 5), want(&other, 5)]).await?;
    ensure_eq!(ids(&claimed.jobs), [id], "a paused queue uses nothing of the limit");
    Ok(())
}

async fn stats_show_the_pause(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    store.create(store.job(&other, Due::NOW)).await?;
    pause(&store, &queue).await?;
    ensure!(store.stats(&queue).await?.paused, "stats show the pause");
    ensure!(!store.stats(&other).await?.paused, "another queue is not paused");
    resume(&store, &queue).await?;
    ensure!(!store.stats(&queue).await?.paused, "stats show that the queue was resumed");
    Ok(())
}

async fn repeated_pause_changes_nothing(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    ensure_eq!(resume(&store, &queue).await?, 0, "a queue that is not paused");
    ensure_eq!(pause(&store, &queue).await?, 1, "the queue changed");
    ensure_eq!(pause(&store, &queue).await?, 0, "it was paused already");
    ensure_eq!(resume(&store, &queue).await?, 1, "one resume ends any number of pauses");
    ensure_eq!(resume(&store, &queue).await?, 0, "it was resumed already");
    store.lease_one(&queue).await?;
    Ok(())
}

async fn unknown_queue_can_be_paused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    ensure_eq!(resume(&store, &queue).await?, 0, "the queue is not paused");
    ensure_eq!(pause(&store, &queue).await?, 1, "a queue can be paused before its first job");
    ensure!(store.stats(&queue).await?.paused, "the queue is paused");
    Ok(())
}

async fn purged_queue_stays_paused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    pause(&store, &queue).await?;
    store.operate(Operation::Purge { queue: &queue }).await?;
    store.create(store.job(&queue, Due::NOW)).await?;
    store.expect_empty_claim(&queue, "the queue is still paused after a purge").await
}

async fn pause(store: &TrialStore, queue: &QueueName) -> TrialResult<u64> {
    store.operate(Operation::Pause { queue }).await
}

async fn resume(store: &TrialStore, queue: &QueueName) -> TrialResult<u64> {
    store.operate(Operation::Resume { queue }).await
}
