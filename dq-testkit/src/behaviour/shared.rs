//! Shared stores: each client stands for a process.

use dq_core::{Cancelled, Due, OnConflict, Operation, Rescheduled, Scheduled, Settled, Verdict};

use super::client::Counts;
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "shared":
    jobs_are_visible_to_every_process [shared],
    expiry_is_visible_to_every_process [shared],
    calls_bind_every_process [shared],
    closing_one_process_does_not_affect_others [shared],
}

async fn jobs_are_visible_to_every_process(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.second_client().await?);
    for (from, to) in [(&*store, &other), (&other, &*store)] {
        let job = store.job(&queue, Due::NOW);
        from.create(job.clone()).await?;
        to.expect_counts(&queue, Counts::ready(1), "as soon as the other process has its answer")
            .await?;
        let leased = to.lease_one(&queue).await?;
        ensure_eq!(leased.job.payload, job.payload, "any process can claim the job");
        from.expect_empty_claim(&queue, "another process leased it").await?;
        from.expect_counts(&queue, Counts::running(1), "as seen from another process").await?;
        // The token alone grants the right to settle.
        from.settle_accepted(&leased, Verdict::Done).await?;
        let late = to.settle(leased.lease(), Verdict::Done).await?;
        ensure_eq!(late, Settled::LostLease, "a lease is settled once");
        to.expect_counts(&queue, Counts::NONE, "after another process settled it").await?;
    }
    Ok(())
}

async fn expiry_is_visible_to_every_process(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.second_client().await?);
    let lost = store.lose_job(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_lost_one(&other, &queue).await?;
    ensure!(leased.token > lost.token, "tokens grow across processes");
    ensure_eq!((leased.job.deliveries, leased.job.losses), (2, 1), "the expiry is counted once");
    let late = store.settle(lost.lease(), Verdict::Done).await?;
    ensure_eq!(late, Settled::LostLease, "the first lease is stale");
    other.settle_accepted(&leased, Verdict::Done).await
}

async fn calls_bind_every_process(store: TrialStore) -> TrialResult {
    let (can, other) = (store.capabilities(), store.second_client().await?);
    if can.cancel {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        ensure_eq!(other.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
        store.expect_empty_claim(&queue, "another process cancelled it").await?;
    }
    if can.reschedule {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let moved = other.reschedule(&queue, id, LATER).await?;
        ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job");
        store.expect_empty_claim(&queue, "another process moved it to a later time").await?;
    }
    if can.keys {
        let queue = store.queue();
        let first = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
        let again = other.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
        ensure_eq!(again, Scheduled::Kept(first), "a key is shared by all processes");
    }
    if can.pause {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        other.operate(Operation::Pause { queue: &queue }).await?;
        store.expect_empty_claim(&queue, "the queue is paused in every process").await?;
        other.operate(Operation::Resume { queue: &queue }).await?;
        store.lease_one(&queue).await?;
    }
    Ok(())
}

async fn closing_one_process_does_not_affect_others(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.second_client().await?);
    let third = store.second_client().await?;
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = other.lease_one(&queue).await?;
    other.backend().close().await?;
    drop(third);
    store
        .expect_counts(&queue, Counts::running(1), "after another process closed the store")
        .await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    store.start(&queue).await?;
    Ok(())
}
