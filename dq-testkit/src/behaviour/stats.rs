//! Counts: a job has one state, and totals count how jobs were stored and how they left.

use dq_core::{
    Cancelled, DeadKind, DeadReason, Due, OnConflict, Operation, QueueName, Totals, Verdict,
};

use super::client::Counts;
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, ShortLease, TrialStore};
use super::trial::topic;

topic! { "stats":
    unknown_queue_has_zero_counts,
    each_job_is_counted_in_one_state,
    states_follow_the_clock,
    counts_are_right_after_each_settlement,
    next_due_ignores_leased_jobs,
    answers_are_in_request_order,
    all_queues_are_listed_in_name_order,
    totals_count_each_verdict [Totals, DeadLetters],
    totals_count_cancels [Totals, Cancel],
    totals_count_replacements [Totals, Keys],
    totals_count_removals [Totals, DeadLetters],
    totals_ignore_jobs_that_were_not_stored [Totals],
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
    store_dead_jobs(&store, &queue, 4).await?;
    store_jobs(&store, &queue, 3, Due::NOW).await?;
    store.lease(&queue, 3).await?;
    store_jobs(&store, &queue, 2, Due::NOW).await?;
    store_jobs(&store, &queue, 1, LATER).await?;
    // Without the capability, a store need not count dead jobs.
    let dead = if store.capabilities().dead_letters { 4 } else { store.stats(&queue).await?.dead };
    let wanted = Counts { scheduled: 1, ready: 2, running: 3, dead };
    store.expect_counts(&queue, wanted, "with jobs in all four states").await
}

async fn states_follow_the_clock(store: TrialStore) -> TrialResult {
    let ShortLease { queue, leased, .. } =
        store.while_leased(|store, held| Box::pin(another_becomes_due(store, held))).await?;
    store.wait_until(leased.leased_until).await?;
    let wanted = Counts { scheduled: 1, ..Counts::ready(2) };
    store.expect_counts(&queue, wanted, "after a job became due and a lease ended").await?;
    let next = store.stats(&queue).await?.next_due;
    ensure_eq!(next, Some(leased.job.due), "a lapsed job keeps its due time");
    Ok(())
}

async fn another_becomes_due(store: &TrialStore, held: &ShortLease) -> TrialResult {
    let due = store.create(store.job(&held.queue, SOON)).await?.due;
    store_jobs(store, &held.queue, 1, LATER).await?;
    store.wait_until(due).await?;
    let next = store.stats(&held.queue).await?.next_due;
    ensure_eq!(next, Some(due), "`next_due` includes a due job");
    Ok(())
}

async fn counts_are_right_after_each_settlement(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let verdicts = [
        (Verdict::Done, Counts::NONE),
        (Verdict::skip("a reason"), Counts::NONE),
        (Verdict::retry(LATER.into(), "a reason"), Counts::scheduled(1)),
        (Verdict::retry(Due::NOW, "a reason"), Counts::ready(1)),
        (Verdict::Snooze(LATER.into()), Counts::scheduled(1)),
        (Verdict::Release { started: true }, Counts::ready(1)),
        (Verdict::Release { started: false }, Counts::ready(1)),
    ];
    for (verdict, wanted) in verdicts {
        store_jobs(&store, &queue, 1, Due::NOW).await?;
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, verdict.clone()).await?;
        store.expect_counts(&queue, wanted, &format!("right after {verdict:?}")).await?;
        store.operate(Operation::Purge { queue: &queue }).await?;
        store.expect_counts(&queue, Counts::NONE, "right after a purge").await?;
    }
    Ok(())
}

async fn next_due_ignores_leased_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    store_jobs(&store, &queue, 1, now - LATER).await?;
    store_jobs(&store, &queue, 1, now - SOON).await?;
    store_jobs(&store, &queue, 1, now + LATER).await?;
    for wanted in [now - LATER, now - SOON, now + LATER] {
        ensure_eq!(
            store.stats(&queue).await?.next_due,
            Some(wanted),
            "`next_due` is the earliest of scheduled and ready jobs, not of leased ones"
        );
        store.lease(&queue, 1).await?;
    }
    Ok(())
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    for (queue, count) in queues.iter().zip([3, 0, 1]) {
        store_jobs(&store, queue, count, LATER).await?;
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
        store_jobs(&store, queue, 1, LATER).await?;
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
    store_jobs(&store, &queue, 7, Due::NOW).await?;
    store_jobs(&store, &queue, 2, LATER).await?;
    let claimed = store.lease(&queue, 6).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    let verdicts = [
        Verdict::Done,
        Verdict::Done,
        Verdict::skip("a reason"),
        Verdict::retry(LATER.into(), "a reason"),
        Verdict::Snooze(LATER.into()),
        Verdict::Dead { reason, failed: true },
    ];
    for (leased, verdict) in claimed.iter().zip(verdicts) {
        store.settle_accepted(leased, verdict).await?;
        // The lease is lost.
        store.settle(leased.lease(), Verdict::Done).await?;
    }
    expect_totals(&store, &queue, |totals| {
        totals.created = 9;
        totals.done = 2;
        totals.skipped = 1;
    })
    .await?;
    // One unclaimed, one retried, one snoozed, two in the future, and one dead.
    store.operate(Operation::Purge { queue: &queue }).await?;
    expect_totals(&store, &queue, |totals| {
        totals.created = 9;
        totals.done = 2;
        totals.skipped = 1;
        totals.removed = 6;
    })
    .await
}

async fn totals_count_cancels(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for due in [Due::After(LATER), Due::NOW] {
        let id = store.create(store.job(&queue, due)).await?.id;
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::NotFound, "it was removed already");
    }
    expect_totals(&store, &queue, |totals| {
        totals.created = 2;
        totals.cancelled = 2;
    })
    .await
}

async fn totals_count_replacements(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for policy in [OnConflict::Keep, OnConflict::Keep, OnConflict::Replace, OnConflict::Replace] {
        let _ = store.schedule(store.keyed(&queue, LATER, "k", policy)).await?;
    }
    expect_totals(&store, &queue, |totals| {
        totals.created = 3;
        totals.replaced = 2;
    })
    .await
}

async fn totals_count_removals(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_dead_jobs(&store, &queue, 3).await?;
    store.replay_all(&queue).await?;
    expect_totals(&store, &queue, |totals| {
        totals.created = 3;
    })
    .await?;
    for leased in store.lease(&queue, 2).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "still no");
        store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    store
        .operate(Operation::Remove { queue: &queue, jobs: &store.dead_ids(&queue).await?[..] })
        .await?;
    expect_totals(&store, &queue, |totals| {
        totals.created = 3;
        totals.removed = 2;
    })
    .await
}

async fn totals_ignore_jobs_that_were_not_stored(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, LATER);
    store.create(job.clone()).await?;
    for _ in 0..3 {
        let _ = store.schedule(job.clone()).await?;
    }
    expect_totals(&store, &queue, |totals| {
        totals.created = 1;
    })
    .await
}

/// Zero except where `change` sets a total.
async fn expect_totals(
    store: &TrialStore,
    queue: &QueueName,
    change: impl FnOnce(&mut Totals),
) -> TrialResult {
    let mut wanted = Totals::default();
    change(&mut wanted);
    let found = store.stats(queue).await?.totals;
    let found =
        found.ok_or_else(|| Failure::new("totals are set, as the backend has the capability"))?;
    ensure_eq!(found, wanted, "each job is counted once, by how it left the store");
    Ok(())
}

async fn store_jobs(
    store: &TrialStore,
    queue: &QueueName,
    count: usize,
    due: impl Into<Due>,
) -> TrialResult {
    let due = due.into();
    store.schedule_all((0..count).map(|_| store.job(queue, due)).collect()).await?;
    Ok(())
}

async fn store_dead_jobs(store: &TrialStore, queue: &QueueName, count: usize) -> TrialResult {
    store_jobs(store, queue, count, Due::NOW).await?;
    for leased in store.lease(queue, count).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    Ok(())
}
