//! Reschedules: the new due time replaces the old one.
//!
//! `targets` tests which jobs a reschedule finds.

use dq_core::{Due, Rescheduled, Verdict};

use super::client::{Counts, want};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "reschedule":
    earlier_due_time_takes_effect [reschedule],
    later_due_time_takes_effect [reschedule],
    rescheduled_job_is_otherwise_unchanged [reschedule],
}

async fn earlier_due_time_takes_effect(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, LATER)).await?;
    let due = store.now().await? + SOON;
    ensure_matches!(
        store.reschedule(&queue, receipt.id, due).await?,
        Rescheduled::Moved(moved) if moved.id == receipt.id && moved.due == due,
        "the receipt has the job's id and new due time"
    );
    let claimed = store.claim(&[want(&queue, 1)]).await?;
    if claimed.jobs.is_empty() {
        // A claim in several shards may end after the due time; then it says when to look again.
        if claimed.now < due {
            ensure_eq!(claimed.next_due, Some(due), "`next_due` is the new due time");
        }
        store.wait_until(due).await?;
        store.lease_one(&queue).await?;
    }
    Ok(())
}

async fn later_due_time_takes_effect(store: TrialStore) -> TrialResult {
    for due in [Due::After(SOON), Due::NOW] {
        let queue = store.queue();
        let first = store.create(store.job(&queue, due)).await?;
        let before = store.now().await?;
        let moved = store.reschedule(&queue, first.id, LATER).await?;
        let after = store.now().await?;
        ensure_matches!(
            moved,
            Rescheduled::Moved(receipt) if (before + LATER..=after + LATER).contains(&receipt.due),
            "a delay is relative to the store's clock, not to the old due time"
        );
        store.wait_until(first.due + SOON).await?;
        store.expect_empty_claim(&queue, "the old due time does not apply").await?;
        store.expect_counts(&queue, Counts::scheduled(1), "after it was moved").await?;
        let later = store.stats(&queue).await?.next_due;
        ensure!(later >= Some(before + LATER), "`next_due` is the new due time: {later:?}");
    }
    Ok(())
}

async fn rescheduled_job_is_otherwise_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.lose_job(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::retry(LATER.into(), "a reason")).await?;
    let due = store.now().await? - SOON;
    let moved = store.reschedule(&queue, leased.job.id, due).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a job that waits for its retry is moved");
    let again = store.lease_one(&queue).await?.job;
    let mut wanted = leased.job.clone();
    (wanted.due, wanted.first_due) = (due, due);
    (wanted.attempts, wanted.deliveries, wanted.losses) = (1, 3, 0);
    ensure_eq!(again, wanted, "id, payload and counts are unchanged");
    Ok(())
}
