//! Counts: a job has one state, and totals count how jobs were stored and how they left.

use dq_core::{Cancelled, Due, OnConflict, Operation, QueueName, Totals, Verdict};

use super::client::{Counts, dead};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "stats":
    unknown_queue_has_zero_counts,
    each_job_is_counted_in_one_state,
    answers_are_in_request_order,
    all_queues_are_listed_in_name_order,
    totals_count_each_verdict [totals, dead_letters],
    totals_count_cancels_and_replacements [totals, keys, cancel],
}

async fn unknown_queue_has_zero_counts(store: TrialStore) -> TrialResult {
    let stats = store.stats(&store.queue()).await?;
    ensure_eq!(stats.stored(), 0, "an unknown queue has no jobs");
    ensure!(!stats.paused, "an unknown queue is not paused");
    ensure_eq!(
        stats.totals,
        store.capabilities().totals.then(Totals::default),
        "totals are set exactly if the backend has the capability"
    );
    Ok(())
}

async fn each_job_is_counted_in_one_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create_many(&queue, 4, Due::NOW).await?;
    for leased in store.lease(&queue, 4).await? {
        store.settle_accepted(&leased, dead("no")).await?;
    }
    store.create_many(&queue, 3, Due::NOW).await?;
    store.lease(&queue, 3).await?;
    store.create_many(&queue, 2, Due::NOW).await?;
    store.create(store.job(&queue, LATER)).await?;
    // Without the capability, a store need not count dead jobs.
    let dead = if store.capabilities().dead_letters { 4 } else { store.stats(&queue).await?.dead };
    let wanted = Counts { scheduled: 1, ready: 2, running: 3, dead };
    store.expect_counts(&queue, wanted, "with jobs in all four states").await
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    for (queue, count) in queues.iter().zip([3, 0, 1]) {
        store.create_many(queue, count, LATER).await?;
    }
    let requested = [&queues[2], &queues[0], &queues[1], &queues[0]].map(Clone::clone);
    let stats = store.backend().stats(&requested).await?;
    let found: Vec<_> = stats.iter().map(|stats| (&stats.queue, stats.scheduled)).collect();
    let wanted: Vec<_> = requested.iter().zip([1, 3, 0, 3]).collect();
    ensure_eq!(found, wanted, "answers are in request order");
    Ok(())
}

async fn all_queues_are_listed_in_name_order(store: TrialStore) -> TrialResult {
    let mut queues = [store.queue_named("b"), store.queue_named("a"), store.queue_named("c")];
    for queue in &queues {
        store.create_many(queue, 1, LATER).await?;
    }
    queues.sort_unstable();
    let all = store.backend().stats(&[]).await?;
    ensure!(
        all.is_sorted_by(|a, b| a.queue < b.queue),
        "all queues are listed in name order, once each"
    );
    let ours: Vec<_> = all
        .into_iter()
        .filter(|stats| queues.contains(&stats.queue))
        .map(|stats| (stats.queue, stats.scheduled))
        .collect();
    ensure_eq!(ours, queues.map(|queue| (queue, 1)), "all queues known to the store are listed");
    Ok(())
}

async fn totals_count_each_verdict(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create_many(&queue, 8, Due::NOW).await?;
    let claimed = store.lease(&queue, 7).await?;
    let verdicts = [
        Verdict::Done,
        Verdict::Done,
        Verdict::skip("a reason"),
        Verdict::retry(LATER.into(), "a reason"),
        Verdict::Snooze(LATER.into()),
        dead("no"),
        dead("no"),
    ];
    for (leased, verdict) in claimed.iter().zip(verdicts) {
        store.settle_accepted(leased, verdict).await?;
        // The lease is lost.
        store.settle(leased.lease(), Verdict::Done).await?;
    }
    let mut wanted = Totals::default();
    (wanted.created, wanted.done, wanted.skipped) = (8, 2, 1);
    expect_totals(&store, &queue, wanted).await?;
    let dead = store.dead_ids(&queue).await?;
    let replay = Operation::Replay { queue: &queue, jobs: &dead[..1], due: LATER.into() };
    store.operate(replay).await?;
    expect_totals(&store, &queue, wanted).await?;
    store.operate(Operation::Remove { queue: &queue, jobs: &dead[1..] }).await?;
    wanted.removed = 1;
    expect_totals(&store, &queue, wanted).await?;
    // One unclaimed, one retried, one snoozed and one replayed.
    store.operate(Operation::Purge { queue: &queue }).await?;
    wanted.removed = 5;
    expect_totals(&store, &queue, wanted).await
}

async fn totals_count_cancels_and_replacements(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, LATER);
    store.create(job.clone()).await?;
    // Stores nothing.
    let _ = store.schedule(job.clone()).await?;
    for answer in [Cancelled::Cancelled, Cancelled::NotFound] {
        ensure_eq!(store.cancel(&queue, job.id).await?, answer, "a job is cancelled once");
    }
    for policy in [OnConflict::Keep, OnConflict::Keep, OnConflict::Replace, OnConflict::Replace] {
        let _ = store.schedule(store.keyed(&queue, LATER, "k", policy)).await?;
    }
    let mut wanted = Totals::default();
    (wanted.created, wanted.cancelled, wanted.replaced) = (4, 1, 2);
    expect_totals(&store, &queue, wanted).await
}

async fn expect_totals(store: &TrialStore, queue: &QueueName, wanted: Totals) -> TrialResult {
    let found = store.stats(queue).await?.totals;
    ensure_eq!(found, Some(wanted), "each job is counted once, by how it left the store");
    Ok(())
}
