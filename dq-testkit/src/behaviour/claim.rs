//! Claims: how many jobs from which queues, and the next due time.

use std::time::Duration;

use dq_core::{Claimed, Due, QueueName, Timestamp, Want};

use super::client::{Counts, LEASE, SHORT_LEASE, want};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "claim":
    limit_bounds_the_whole_claim,
    wants_are_served_in_order,
    claim_of_zero_jobs_reports_next_due,
    next_due_is_the_earliest_due_time,
    next_due_is_past_while_more_is_due,
    lease_has_the_requested_length,
}

async fn limit_bounds_the_whole_claim(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    for queue in &queues {
        store.create_many(queue, 5, Due::NOW).await?;
    }
    let wants = queues.each_ref().map(|queue| want(queue, 4));
    let mut sizes = Vec::new();
    for limit in [1, 7, 3] {
        sizes.push(store.claim_at_most(limit, &wants).await?.jobs.len());
    }
    let unbounded = want(&queues[2], usize::MAX);
    sizes.push(store.claim_at_most(usize::MAX, &[unbounded]).await?.jobs.len());
    // Jobs 1–8 (5 from the first queue, 3 from the second), then 2 and 1, then all the rest.
    ensure_eq!(sizes, [1, 7, 3, 4], "`limit` bounds a claim over all queues");
    Ok(())
}

async fn wants_are_served_in_order(store: TrialStore) -> TrialResult {
    let (first, second) = (store.queue(), store.queue());
    // The second queue's jobs are due earlier, but the wants decide the order.
    let old = store.now().await? - LATER;
    store.create_many(&second, 3, old).await?;
    store.create_many(&first, 3, Due::NOW).await?;
    let wants = [want(&first, 10), want(&second, 10)];
    let served = |claimed: Claimed| {
        let count =
            |queue: &QueueName| claimed.jobs.iter().filter(|it| it.job.queue == *queue).count();
        (count(&first), count(&second))
    };
    let claimed = store.claim_at_most(4, &wants).await?;
    ensure_eq!(served(claimed), (3, 1), "wants are served in order");
    let claimed = store.claim_at_most(4, &wants).await?;
    ensure_eq!(served(claimed), (0, 2), "the second want gets the rest of the limit");
    Ok(())
}

async fn claim_of_zero_jobs_reports_next_due(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    store.create(store.job(&queue, due)).await?;
    let wants = [want(&queue, 5)];
    let nothing = || store.claim_at_most(0, &wants);
    ensure_eq!(nothing().await?.next_due, Some(due), "with limit zero");
    let claimed = store.claim(&[want(&queue, 0)]).await?;
    ensure_eq!(claimed.next_due, Some(due), "a claim of zero jobs reports `next_due`");
    store.create(store.job(&queue, Due::NOW)).await?;
    for claimed in [store.claim(&[want(&queue, 0)]).await?, nothing().await?] {
        ensure!(
            claimed.next_due.is_some_and(|next| next <= claimed.now),
            "while a job is due, `next_due` is not after `now`: {claimed:?}"
        );
    }
    let counts = Counts { ready: 1, ..Counts::scheduled(1) };
    store.expect_counts(&queue, counts, "nothing was wanted").await
}

async fn next_due_is_the_earliest_due_time(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue()];
    let wants = queues.each_ref().map(|queue| want(queue, 5));
    let now = store.now().await?;
    let mut earliest = Timestamp::MAX;
    for (n, ahead) in [90, 30, 60, 10, 80, 20].into_iter().enumerate() {
        let due = now + LATER + Duration::from_millis(ahead);
        store.create(store.job(&queues[n % 2], due)).await?;
        earliest = earliest.min(due);
        let claimed = store.claim(&wants).await?;
        ensure_eq!(claimed.next_due, Some(earliest), "`next_due` is the earliest due time");
    }
    let claimed = store.claim(&wants[..1]).await?;
    let first = now + LATER + Duration::from_millis(60);
    ensure_eq!(claimed.next_due, Some(first), "`next_due` ignores queues that were not wanted");
    Ok(())
}

async fn next_due_is_past_while_more_is_due(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create_many(&queue, 3, Due::NOW).await?;
    for remaining in (0..3).rev() {
        let claimed = store.claim(&[want(&queue, 1)]).await?;
        let is_past = claimed.next_due.is_some_and(|next| next <= claimed.now);
        let more_due = remaining > 0;
        ensure_eq!(is_past, more_due, "`next_due` is past exactly while more is due: {claimed:?}");
    }
    // The same when `limit` leaves a job.
    let (first, second) = (store.queue(), store.queue());
    store.create(store.job(&first, Due::NOW)).await?;
    store.create(store.job(&second, Due::NOW)).await?;
    let claimed = store.claim_at_most(1, &[want(&first, 1), want(&second, 1)]).await?;
    ensure!(
        claimed.next_due.is_some_and(|next| next <= claimed.now),
        "`next_due` includes the job that the limit left: {claimed:?}"
    );
    Ok(())
}

async fn lease_has_the_requested_length(store: TrialStore) -> TrialResult {
    let lengths = [SHORT_LEASE, Duration::from_millis(60_001), LEASE, LATER * 24];
    let mut wants = Vec::new();
    for lease_for in lengths {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        wants.push(Want::new(queue, 1, lease_for));
    }
    let before = store.now().await?;
    let claimed = store.claim(&wants).await?;
    let after = store.now().await?;
    for Want { queue, lease_for, .. } in wants {
        let leased = claimed.jobs.iter().find(|leased| leased.job.queue == queue);
        let until = leased.map(|leased| leased.leased_until);
        // The servers of a cluster answer one after the other.
        ensure!(
            until.is_some_and(|until| (before + lease_for..=after + lease_for).contains(&until)),
            "each lease has its want's length from the store's now: {lease_for:?}, {until:?}"
        );
    }
    Ok(())
}
