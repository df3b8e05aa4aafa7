//! Counts: a job has one state, and totals count how jobs were stored and how they left.

use dq_core::{Due, Operation, QueueName, Totals, Verdict};

use super::client::dead;
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "stats":
    unknown_queue_has_zero_counts,
    answers_are_in_request_order,
    all_queues_are_listed_in_name_order,
    totals_count_each_verdict [totals, dead_letters],
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
    // In the order of their bytes, which differs from a dictionary's.
    let start = store.queue();
    let mut queues = Vec::new();
    for end in ["b", "a", "é", "B", "a:1", "ab"] {
        queues.push(QueueName::new(format!("{start}{end}"))?);
    }
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
    let wanted: Vec<_> = queues.iter().map(|queue| (queue.clone(), 1)).collect();
    ensure_eq!(ours, wanted, "all queues known to the store are listed");
    Ok(())
}

async fn totals_count_each_verdict(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut verdicts = store.verdicts_to_run_again(LATER);
    let waiting = verdicts.len() as u64;
    verdicts.extend([Verdict::Done, Verdict::Done, Verdict::skip("a reason")]);
    verdicts.extend([dead("no"), dead("no")]);
    store.create_many(&queue, verdicts.len() + 1, Due::NOW).await?;
    let claimed = store.lease(&queue, verdicts.len()).await?;
    for (leased, verdict) in claimed.iter().zip(verdicts) {
        store.settle_accepted(leased, verdict).await?;
        // The lease is lost, so this counts nothing.
        store.settle(leased.lease(), Verdict::Done).await?;
    }
    let mut wanted = Totals::default();
    (wanted.created, wanted.done, wanted.skipped) = (waiting + 6, 2, 1);
    expect_totals(&store, &queue, wanted).await?;
    let dead = store.dead_ids(&queue).await?;
    let replay = Operation::Replay { queue: &queue, jobs: &dead[..1], due: LATER.into() };
    store.operate(replay).await?;
    expect_totals(&store, &queue, wanted).await?;
    store.operate(Operation::Remove { queue: &queue, jobs: &dead[1..] }).await?;
    wanted.removed = 1;
    expect_totals(&store, &queue, wanted).await?;
    // The waiting jobs, the one that was not claimed, and the replayed one.
    store.operate(Operation::Purge { queue: &queue }).await?;
    wanted.removed += waiting + 2;
    expect_totals(&store, &queue, wanted).await
}

async fn expect_totals(store: &TrialStore, queue: &QueueName, wanted: Totals) -> TrialResult {
    let found = store.stats(queue).await?.totals;
    ensure_eq!(found, Some(wanted), "each job is counted once, by how it left the store");
    Ok(())
}
