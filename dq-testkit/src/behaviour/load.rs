//! Load: many jobs due at once drain, oldest first, in batches as large as asked and no larger.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{Due, NewJob, Timestamp, Verdict};

use super::failure::{Passed, ensure, ensure_eq};
use super::handle::{Counts, want};
use super::stand::{LATER, Stand};
use super::trial::topic;

topic! { "load":
    twenty_thousand_due_at_once_drain,
    due_jobs_are_not_behind_a_backlog,
    many_queues_drain,
}

const MANY: usize = 20_000;

async fn twenty_thousand_due_at_once_drain(stand: Stand) -> Passed {
    const BATCH: usize = 500;
    let queue = stand.queue();
    let due = stand.now().await? - LATER;
    // Half of them in one millisecond, the others before and after, in no order.
    let jobs: Vec<NewJob> = (0..MANY as u64)
        .map(|n| {
            let spread = if n % 2 == 0 { 500 } else { n * 7_919 % 1_000 };
            stand.job(&queue, due + Duration::from_millis(spread))
        })
        .collect();
    stand.put_all(jobs).await?;
    let mut seen = HashSet::with_capacity(MANY);
    let mut last = Timestamp::EPOCH;
    while seen.len() < MANY {
        let taken = stand.take(&queue, BATCH).await?;
        let wanted = BATCH.min(MANY - seen.len());
        ensure_eq!(taken.len(), wanted, "while more is due, a claim brings all it was asked for");
        for leased in &taken {
            ensure!(seen.insert(leased.job.id), "each job is leased once");
            ensure!(last <= leased.job.due, "oldest due first from one claim to the next");
            last = leased.job.due;
        }
        stand.finish_all(&taken).await?;
    }
    stand.expect(&queue, Counts::NONE, "after the drain").await
}

async fn due_jobs_are_not_behind_a_backlog(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..MANY / 2).map(|_| stand.job(&queue, LATER)).collect()).await?;
    for _ in 0..20 {
        let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
        let taken = stand.take_one(&queue).await?;
        ensure_eq!(taken.job.id, id, "a due job does not wait behind those that are not");
        stand.accept(&taken, Verdict::Done).await?;
    }
    stand.expect(&queue, Counts::scheduled(MANY as u64 / 2), "the backlog is untouched").await
}

async fn many_queues_drain(stand: Stand) -> Passed {
    let queues: Vec<_> = (0..200).map(|_| stand.queue()).collect();
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.extend(queues.iter().map(|queue| stand.job(queue, Due::NOW)));
    }
    let mut left = jobs.len();
    stand.put_all(jobs).await?;
    let mut wants: Vec<_> = queues.iter().map(|queue| want(queue, 3)).collect();
    while left > 0 {
        let taken = stand.claim_at_most(64, &wants).await?.jobs;
        ensure_eq!(taken.len(), left.min(64), "a claim over many queues brings what is due");
        left -= taken.len();
        stand.finish_all(&taken).await?;
        // As runners do, so that no queue starves.
        wants.rotate_left(20);
    }
    Ok(())
}
