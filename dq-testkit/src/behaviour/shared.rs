//! Shared stores: each client stands for a process.

use std::collections::HashSet;

use dq_core::{Cancelled, Due, OnConflict, Operation, Rescheduled, Scheduled, Settled, Verdict};

use super::client::Counts;
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "shared":
    jobs_are_visible_to_every_process [Shared],
    lapse_is_visible_to_every_process [Shared],
    calls_bind_every_process [Shared],
    concurrent_processes_lease_each_job_once [Shared],
    concurrent_processes_store_one_job_per_key [Shared, Keys],
    cancel_races_with_claim [Shared, Cancel],
    closing_one_process_does_not_affect_others [Shared],
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
        ensure_eq!(late, Settled::Stale, "a lease is settled once");
        to.expect_counts(&queue, Counts::NONE, "after another process settled it").await?;
    }
    Ok(())
}

async fn lapse_is_visible_to_every_process(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.second_client().await?);
    let lost = store.lose_job(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_lost_one(&other, &queue).await?;
    ensure!(leased.token > lost.token, "tokens grow across processes");
    ensure_eq!((leased.job.deliveries, leased.job.losses), (2, 1), "the lapse is counted once");
    let late = store.settle(lost.lease(), Verdict::Done).await?;
    ensure_eq!(late, Settled::Stale, "the first lease is stale");
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

async fn concurrent_processes_lease_each_job_once(store: TrialStore) -> TrialResult {
    const JOBS: usize = 200;
    let queue = store.queue();
    let clients = [store.client(), store.second_client().await?, store.second_client().await?];
    store.create_many(&queue, JOBS, Due::NOW).await?;
    let claimers = clients.map(|client| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let leased = client.lease(&queue, 7).await?;
                if leased.is_empty() {
                    return TrialResult::Ok(mine);
                }
                client.settle_all_done(&leased).await?;
                mine.extend(super::client::ids(&leased));
            }
        })
    });
    let mut seen = HashSet::new();
    for claimer in claimers {
        for id in claimer.await.map_err(Failure::new)?? {
            ensure!(seen.insert(id), "job {id} was leased by two processes");
        }
    }
    ensure_eq!(seen.len(), JOBS, "concurrent processes lease every job");
    store.expect_counts(&queue, Counts::NONE, "after all were settled").await
}

async fn concurrent_processes_store_one_job_per_key(store: TrialStore) -> TrialResult {
    let clients = [store.client(), store.second_client().await?];
    for _ in 0..10 {
        let queue = store.queue();
        let calls = clients.each_ref().map(|client| {
            let client = client.clone();
            let job = store.keyed(&queue, LATER, "k", OnConflict::Keep);
            tokio::spawn(async move { client.schedule(job).await })
        });
        let mut created = 0;
        for call in calls {
            created += usize::from(call.await.map_err(Failure::new)??.is_stored());
        }
        ensure_eq!(created, 1, "one of two concurrent jobs with one key is stored");
        store
            .expect_counts(&queue, Counts::scheduled(1), "after concurrent calls with one key")
            .await?;
    }
    Ok(())
}

async fn cancel_races_with_claim(store: TrialStore) -> TrialResult {
    let other = store.second_client().await?;
    for _ in 0..10 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let (caller, runner) = (other.clone(), store.client());
        let (cancel_queue, claim_queue) = (queue.clone(), queue.clone());
        let cancel = tokio::spawn(async move { caller.cancel(&cancel_queue, id).await });
        let claim = tokio::spawn(async move { runner.lease(&claim_queue, 1).await });
        let answer = cancel.await.map_err(Failure::new)??;
        let leased = claim.await.map_err(Failure::new)??.len();
        let wanted = if leased == 0 { Cancelled::Cancelled } else { Cancelled::AlreadyRunning };
        ensure_eq!(answer, wanted, "either the cancel or the claim succeeds");
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
