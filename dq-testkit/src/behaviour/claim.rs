//! Claims: how many jobs from which queues, and the next due time.

use std::time::Duration;

use dq_core::{Due, Timestamp, Verdict, Want};

use super::client::{Counts, LEASE, SHORT_LEASE, ensure_next_end, ids, want};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "claim":
    leased_job_is_not_leased_again,
    max_bounds_each_queue,
    limit_bounds_the_whole_claim,
    wants_are_served_in_order,
    one_claim_serves_several_queues,
    unbounded_claim_returns_everything_due,
    other_queues_are_not_claimed,
    unknown_queue_has_no_jobs,
    claim_without_wants_returns_nothing,
    claim_of_zero_jobs_reports_next_due,
    claim_with_limit_zero_reports_next_due,
    next_due_is_the_earliest_due_time,
    next_due_includes_the_end_of_leases,
    next_due_is_past_while_more_is_due,
    next_due_is_the_earliest_of_all_wants,
    next_due_is_none_for_an_empty_queue,
    lease_has_the_requested_length,
    each_want_has_its_own_lease_length,
}

async fn leased_job_is_not_leased_again(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.expect_empty_claim(&queue, "the only job is leased").await?;
    store.expect_empty_claim(&queue, "the only job is still leased").await?;
    store.expect_counts(&queue, Counts::running(1), "while it is leased").await?;
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn max_bounds_each_queue(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_due_jobs(&store, &queue, 10).await?;
    let mut sizes = Vec::new();
    for max in [1, 3, 4, 5, 1] {
        sizes.push(store.lease(&queue, max).await?.len());
    }
    ensure_eq!(sizes, [1, 3, 4, 2, 0], "a claim leases at most `max` jobs of a queue");
    Ok(())
}

async fn limit_bounds_the_whole_claim(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    for queue in &queues {
        store_due_jobs(&store, queue, 5).await?;
    }
    let wants = queues.each_ref().map(|queue| want(queue, 4));
    let mut sizes = Vec::new();
    for limit in [1, 7, 12, 12] {
        sizes.push(store.claim_at_most(limit, &wants).await?.jobs.len());
    }
    // Jobs 1–8 (5 from the first queue, 3 from the second), then 2 and 4, then the last.
    ensure_eq!(sizes, [1, 7, 6, 1], "`limit` bounds a claim over all queues");
    Ok(())
}

async fn wants_are_served_in_order(store: TrialStore) -> TrialResult {
    let (first, second) = (store.queue(), store.queue());
    // The second queue's jobs are due earlier, but the wants decide the order.
    let old = store.now().await? - LATER;
    store.schedule_all((0..3).map(|_| store.job(&second, old)).collect()).await?;
    store_due_jobs(&store, &first, 3).await?;
    let wants = [want(&first, 10), want(&second, 10)];
    let served = |claimed: dq_core::Claimed| {
        let count = |queue: &dq_core::QueueName| {
            claimed.jobs.iter().filter(|it| it.job.queue == *queue).count()
        };
        (count(&first), count(&second))
    };
    let claimed = store.claim_at_most(4, &wants).await?;
    ensure_eq!(served(claimed), (3, 1), "wants are served in order");
    let claimed = store.claim_at_most(4, &wants).await?;
    ensure_eq!(served(claimed), (0, 2), "the second want gets the rest of the limit");
    Ok(())
}

async fn one_claim_serves_several_queues(store: TrialStore) -> TrialResult {
    let queues: Vec<_> = (0..20).map(|_| store.queue()).collect();
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.extend(queues.iter().map(|queue| store.job(queue, Due::NOW)));
    }
    store.schedule_all(jobs).await?;
    let wants: Vec<_> = queues.iter().map(|queue| want(queue, 2)).collect();
    let claimed = store.claim(&wants).await?;
    ensure_eq!(claimed.jobs.len(), 40, "one claim leases two jobs of each of twenty queues");
    for queue in &queues {
        let counts = Counts { ready: 1, ..Counts::running(2) };
        store.expect_counts(queue, counts, "after one claim over twenty queues").await?;
    }
    Ok(())
}

async fn unbounded_claim_returns_everything_due(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_due_jobs(&store, &queue, 30).await?;
    let claimed = store.claim_at_most(usize::MAX, &[want(&queue, usize::MAX)]).await?;
    ensure_eq!(claimed.jobs.len(), 30, "an unbounded claim leases everything due");
    Ok(())
}

async fn other_queues_are_not_claimed(store: TrialStore) -> TrialResult {
    let (wanted, other) = (store.queue(), store.queue());
    store_due_jobs(&store, &wanted, 2).await?;
    store_due_jobs(&store, &other, 2).await?;
    store.lease(&wanted, 10).await?;
    store.expect_counts(&other, Counts::ready(2), "in a queue that was not wanted").await
}

async fn unknown_queue_has_no_jobs(store: TrialStore) -> TrialResult {
    let (unknown, known) = (store.queue(), store.queue());
    let id = store.create(store.job(&known, Due::NOW)).await?.id;
    let claimed = store.claim(&[want(&unknown, 5), want(&known, 5)]).await?;
    ensure_eq!(ids(&claimed.jobs), [id], "an unknown queue does not affect the others");
    let claimed = store.claim(&[want(&unknown, 5)]).await?;
    ensure_eq!(claimed.next_due, None, "an unknown queue has no next due time");
    Ok(())
}

async fn claim_without_wants_returns_nothing(store: TrialStore) -> TrialResult {
    let claimed = store.claim_at_most(10, &[]).await?;
    ensure!(
        claimed.jobs.is_empty() && claimed.next_due.is_none(),
        "a claim without wants returns nothing"
    );
    Ok(())
}

async fn claim_of_zero_jobs_reports_next_due(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    store.create(store.job(&queue, due)).await?;
    let claimed = store.claim(&[want(&queue, 0)]).await?;
    ensure_eq!(claimed.next_due, Some(due), "a claim of zero jobs reports `next_due`");
    store_due_jobs(&store, &queue, 1).await?;
    let claimed = store.claim(&[want(&queue, 0)]).await?;
    ensure!(
        claimed.next_due.is_some_and(|next| next <= claimed.now),
        "while a job is due, `next_due` is not after `now`: {claimed:?}"
    );
    store
        .expect_counts(&queue, Counts { ready: 1, ..Counts::scheduled(1) }, "nothing was wanted")
        .await
}

async fn claim_with_limit_zero_reports_next_due(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    store.create(store.job(&queue, due)).await?;
    let claimed = store.claim_at_most(0, &[want(&queue, 5)]).await?;
    ensure_eq!(claimed.next_due, Some(due), "a claim with limit zero reports `next_due`");
    Ok(())
}

async fn next_due_is_the_earliest_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut wanted = None::<Timestamp>;
    for ahead in [90, 30, 60, 10, 80, 20] {
        let due = now + LATER + Duration::from_millis(ahead);
        store.create(store.job(&queue, due)).await?;
        wanted = Some(wanted.map_or(due, |earliest| earliest.min(due)));
        let claimed = store.claim(&[want(&queue, 5)]).await?;
        ensure_eq!(claimed.next_due, wanted, "`next_due` is the earliest due time");
    }
    Ok(())
}

async fn next_due_includes_the_end_of_leases(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_due_jobs(&store, &queue, 1).await?;
    store.create(store.job(&queue, LATER)).await?;
    let claimed = store.claim(&[want(&queue, 1)]).await?;
    ensure_eq!(claimed.jobs.len(), 1, "jobs claimed");
    let end = claimed.jobs[0].leased_until;
    ensure_next_end(&claimed, end, "the new lease, which comes before the next due time")?;
    let again = store.claim(&[want(&queue, 1)]).await?;
    ensure_next_end(&again, end, "an earlier lease")?;
    store.settle_all_done(&claimed.jobs).await?;
    let after = store.claim(&[want(&queue, 1)]).await?;
    ensure!(after.next_due > claimed.next_due, "`next_due` ignores a settled lease: {after:?}");
    Ok(())
}

async fn next_due_is_past_while_more_is_due(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_due_jobs(&store, &queue, 3).await?;
    for remaining in (0..3).rev() {
        let claimed = store.claim(&[want(&queue, 1)]).await?;
        let is_past = claimed.next_due.is_some_and(|next| next <= claimed.now);
        let more_due = remaining > 0;
        ensure_eq!(is_past, more_due, "`next_due` is past exactly while more is due: {claimed:?}");
    }
    // The same when `limit` leaves a job.
    let (first, second) = (store.queue(), store.queue());
    store_due_jobs(&store, &first, 1).await?;
    store_due_jobs(&store, &second, 1).await?;
    let claimed = store.claim_at_most(1, &[want(&first, 1), want(&second, 1)]).await?;
    ensure!(
        claimed.next_due.is_some_and(|next| next <= claimed.now),
        "`next_due` includes the job that the limit left: {claimed:?}"
    );
    Ok(())
}

async fn next_due_is_the_earliest_of_all_wants(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    let now = store.now().await?;
    for (queue, hours) in queues.iter().zip([2, 1, 3]) {
        store.create(store.job(queue, now + LATER * hours)).await?;
    }
    let wants = queues.each_ref().map(|queue| want(queue, 5));
    let claimed = store.claim(&wants).await?;
    ensure_eq!(claimed.next_due, Some(now + LATER), "`next_due` is the earliest of all wants");
    let claimed = store.claim(&wants[..1]).await?;
    ensure_eq!(
        claimed.next_due,
        Some(now + LATER * 2),
        "`next_due` ignores queues that were not wanted"
    );
    Ok(())
}

async fn next_due_is_none_for_an_empty_queue(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_due_jobs(&store, &queue, 1).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let claimed = store.claim(&[want(&queue, 5)]).await?;
    ensure_eq!(claimed.next_due, None, "an empty queue has no next due time");
    Ok(())
}

async fn lease_has_the_requested_length(store: TrialStore) -> TrialResult {
    for lease_for in [SHORT_LEASE, Duration::from_millis(60_001), LEASE, LATER * 24] {
        let queue = store.queue();
        store_due_jobs(&store, &queue, 1).await?;
        let claimed = store.claim(&[Want::new(queue, 1, lease_for)]).await?;
        ensure_eq!(
            claimed.jobs.first().map(|leased| leased.leased_until),
            Some(claimed.now + lease_for),
            "a lease has the requested length from the store's now"
        );
    }
    Ok(())
}

async fn each_want_has_its_own_lease_length(store: TrialStore) -> TrialResult {
    let (quick, slow) = (store.queue(), store.queue());
    store_due_jobs(&store, &quick, 1).await?;
    store_due_jobs(&store, &slow, 1).await?;
    let wants = [Want::new(quick.clone(), 1, SHORT_LEASE), Want::new(slow.clone(), 1, LEASE)];
    let claimed = store.claim(&wants).await?;
    store.wait_until(claimed.now + SHORT_LEASE + SOON).await?;
    store.expect_counts(&quick, Counts::ready(1), "after its short lease has ended").await?;
    store.expect_counts(&slow, Counts::running(1), "while its long lease lasts").await
}

async fn store_due_jobs(
    store: &TrialStore,
    queue: &dq_core::QueueName,
    count: usize,
) -> TrialResult {
    store.schedule_all((0..count).map(|_| store.job(queue, Due::NOW)).collect()).await?;
    Ok(())
}
