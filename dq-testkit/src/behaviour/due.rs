//! Due times: no job is early, and the earliest comes first.

use std::time::Duration;

use super::client::{Counts, ids, want};
use super::failure::{TrialResult, ensure_eq};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "due":
    never_early_by_one_millisecond [virtual_time],
    never_early_on_a_real_clock [real_time],
    shorter_delay_does_not_wait_behind_a_longer_one,
    equal_due_times_are_claimed_in_insertion_order [fifo],
}

async fn never_early_by_one_millisecond(store: TrialStore) -> TrialResult {
    for ahead in [1, 499, 500, 999, 1_000, 1_001, 86_399_999] {
        let queue = store.queue();
        let due = store.now().await? + Duration::from_millis(ahead);
        store.create(store.job(&queue, due)).await?;
        store.expect_empty_claim(&queue, "the job is not due yet").await?;
        store.wait_until(due - Duration::from_millis(1)).await?;
        store.expect_empty_claim(&queue, "the due time is one millisecond away").await?;
        store.expect_counts(&queue, Counts::scheduled(1), "one millisecond before").await?;
        store.wait_until(due).await?;
        store.expect_counts(&queue, Counts::ready(1), "at the due time").await?;
        store.lease_one(&queue).await?;
    }
    Ok(())
}

async fn never_early_on_a_real_clock(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut jobs: Vec<_> =
        (0..60).map(|n| store.job(&queue, Duration::from_millis(n * 7 % 60 + 5))).collect();
    let start = store.now().await?;
    jobs.extend((0..20).map(|n| store.job(&queue, start + Duration::from_millis(n * 3 + 1))));
    let count = jobs.len();
    let answers = store.schedule_all(jobs).await?;
    let mut leased_count = 0;
    while leased_count < count {
        // `claim` checks that no job is early.
        let claimed = store.claim(&[want(&queue, 10)]).await?;
        for leased in &claimed.jobs {
            let receipt = answers.iter().find(|answer| answer.id() == leased.job.id);
            ensure_eq!(
                Some(leased.job.due),
                receipt.map(dq_core::Scheduled::due),
                "a job has the due time of its receipt"
            );
        }
        leased_count += claimed.jobs.len();
        tokio::task::yield_now().await;
    }
    store.expect_empty_claim(&queue, "all jobs are leased").await
}

/// No consumer calls or listens before the due time.
async fn shorter_delay_does_not_wait_behind_a_longer_one(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, LATER)).await?;
    let short = store.create(store.job(&queue, SOON)).await?;
    store.create(store.job(&queue, LATER * 2)).await?;
    store.wait_until(short.due + SOON).await?;
    let counts = Counts { scheduled: 2, ..Counts::ready(1) };
    store.expect_counts(&queue, counts, "after the shorter delay").await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.id, short.id, "a shorter delay does not wait behind a longer one");
    Ok(())
}

async fn equal_due_times_are_claimed_in_insertion_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut jobs: Vec<_> = (0..30).map(|_| store.job(&queue, now)).collect();
    // Ids grow with time, but the insertion order must not depend on them.
    jobs.reverse();
    jobs.swap(3, 20);
    let wanted: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let rest = jobs.split_off(10);
    store.schedule_all(jobs).await?;
    for job in rest {
        store.create(job).await?;
    }
    let mut found = Vec::new();
    for _ in 0..5 {
        found.extend(ids(&store.lease(&queue, 6).await?));
    }
    ensure_eq!(found, wanted, "equal due times are claimed in insertion order");
    Ok(())
}
