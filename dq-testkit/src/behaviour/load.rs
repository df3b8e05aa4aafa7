//! Load: many due jobs are claimed in due order, in full batches.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{Due, NewJob, Scheduled, Timestamp, Verdict};

use super::client::{Counts, want};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "load":
    thousands_of_due_jobs_are_drained,
    due_jobs_do_not_wait_behind_a_backlog,
    two_hundred_queues_are_drained,
}

async fn thousands_of_due_jobs_are_drained(store: TrialStore) -> TrialResult {
    const JOBS: usize = 3_000;
    /// Each call exceeds the number of jobs that a store changes in one step.
    const BATCH: usize = 2_100;
    let queue = store.queue();
    let due = store.now().await? - LATER;
    // Half the jobs share one due time. The others surround it, in no order.
    let jobs: Vec<NewJob> = (0..JOBS as u64)
        .map(|n| {
            let offset = if n % 2 == 0 { 500 } else { n * 7_919 % 1_000 };
            store.job(&queue, due + Duration::from_millis(offset))
        })
        .collect();
    let wanted: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let answers = store.schedule_all(jobs).await?;
    let found: Vec<_> = answers.iter().map(Scheduled::id).collect();
    ensure!(found == wanted, "each job of a long batch has an answer, in order");
    ensure!(
        answers.iter().all(|answer| matches!(answer, Scheduled::Created(_))),
        "each job of a long batch is `Created`"
    );
    store.expect_counts(&queue, Counts::ready(JOBS as u64), "after a long batch").await?;

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
    const BACKLOG: usize = 2_000;
    let queue = store.queue();
    store.create_many(&queue, BACKLOG, LATER).await?;
    for _ in 0..10 {
        let new = store.job(&queue, Due::NOW);
        let leased = store.start_job(new.clone()).await?;
        ensure_eq!(leased.job.id, new.id, "a due job does not wait behind scheduled ones");
        store.settle_accepted(&leased, Verdict::Done).await?;
    }
    let counts = Counts::scheduled(BACKLOG as u64);
    store.expect_counts(&queue, counts, "the backlog is unchanged").await
}

async fn two_hundred_queues_are_drained(store: TrialStore) -> TrialResult {
    let queues: Vec<_> = (0..200).map(|_| store.queue()).collect();
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.extend(queues.iter().map(|queue| store.job(queue, Due::NOW)));
    }
    let mut remaining = jobs.len();
    store.schedule_all(jobs).await?;
    let mut wants: Vec<_> = queues.iter().map(|queue| want(queue, 2)).collect();
    while remaining > 0 {
        let leased = store.claim_at_most(64, &wants).await?.jobs;
        let full = remaining.min(64);
        ensure_eq!(leased.len(), full, "a claim over many queues returns a full batch");
        remaining -= leased.len();
        store.settle_all_done(&leased).await?;
        // As runners do, so that no queue starves.
        wants.rotate_left(20);
    }
    Ok(())
}
