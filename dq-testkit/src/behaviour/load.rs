//! Load: many due jobs are claimed in due order, in full batches.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{Due, NewJob, Timestamp, Verdict};

use super::client::{Counts, want};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "load":
    twenty_thousand_due_jobs_are_drained,
    due_jobs_do_not_wait_behind_a_backlog,
    two_hundred_queues_are_drained,
}

const JOBS: usize = 20_000;

async fn twenty_thousand_due_jobs_are_drained(store: TrialStore) -> TrialResult {
    const BATCH: usize = 500;
    let queue = store.queue();
    let due = store.now().await? - LATER;
    // Half the jobs share one due time. The others surround it, in no order.
    let jobs: Vec<NewJob> = (0..JOBS as u64)
        .map(|n| {
            let offset = if n % 2 == 0 { 500 } else { n * 7_919 % 1_000 };
            store.job(&queue, due + Duration::from_millis(offset))
        })
        .collect();
    store.schedule_all(jobs).await?;
    let mut seen = HashSet::with_capacity(JOBS);
    let mut last = Timestamp::EPOCH;
    while seen.len() < JOBS {
        let claimed = store.lease(&queue, BATCH).await?;
        let wanted = BATCH.min(JOBS - seen.len());
        ensure_eq!(claimed.len(), wanted, "a claim returns a full batch while enough jobs are due");
        for leased in &claimed {
            ensure!(seen.insert(leased.job.id), "each job is leased once");
            ensure!(last <= leased.job.due, "jobs are in due order across claims");
            last = leased.job.due;
        }
        store.settle_all_done(&claimed).await?;
    }
    store.expect_counts(&queue, Counts::NONE, "after all jobs were settled").await
}

async fn due_jobs_do_not_wait_behind_a_backlog(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..JOBS / 2).map(|_| store.job(&queue, LATER)).collect()).await?;
    for _ in 0..20 {
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(leased.job.id, id, "a due job does not wait behind scheduled ones");
        store.settle_accepted(&leased, Verdict::Done).await?;
    }
    store
        .expect_counts(&queue, Counts::scheduled(JOBS as u64 / 2), "the backlog is unchanged")
        .await
}

async fn two_hundred_queues_are_drained(store: TrialStore) -> TrialResult {
    let queues: Vec<_> = (0..200).map(|_| store.queue()).collect();
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.extend(queues.iter().map(|queue| store.job(queue, Due::NOW)));
    }
    let mut remaining = jobs.len();
    store.schedule_all(jobs).await?;
    let mut wants: Vec<_> = queues.iter().map(|queue| want(queue, 3)).collect();
    while remaining > 0 {
        let leased = store.claim_at_most(64, &wants).await?.jobs;
        ensure_eq!(
            leased.len(),
            remaining.min(64),
            "a claim over many queues returns a full batch"
        );
        remaining -= leased.len();
        store.settle_all_done(&leased).await?;
        // As runners do, so that no queue starves.
        wants.rotate_left(20);
    }
    Ok(())
}
