//! Dead jobs stay until an operator replays or removes them.

use std::time::Duration;

use dq_core::{Due, JobId, OnConflict, Operation, QueueName, Scheduled, Settlement, Verdict};

use super::client::{Counts, dead};
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "dead":
    dead_jobs_do_not_expire [dead_letters, virtual_time],
    replay_resets_attempts_and_losses [dead_letters],
    replay_of_more_than_a_thousand [dead_letters],
    replay_skips_a_job_whose_key_is_live [dead_letters, keys],
}

async fn dead_jobs_do_not_expire(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store_dead_job(&store, &queue).await?;
    store.wait_for(LATER * 24 * 365 * 3).await?;
    store.expect_counts(&queue, Counts::dead(1), "three years after death").await?;
    ensure_eq!(replay(&store, &queue, &[id]).await?, 1, "it can still be replayed");
    Ok(())
}

async fn replay_resets_attempts_and_losses(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    store.lose_job(new.clone()).await?;
    // Counted are the lost lease, each round's first lease and this round's second, which its
    // release takes back.
    for deliveries in [3, 4] {
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, dead("no")).await?;
        // The second death has a later time. A store that kept the first death's index entry would
        // count the job twice.
        store.wait_for(Duration::from_millis(1)).await?;
        store.expect_counts(&queue, Counts::dead(1), "after death").await?;
        ensure_eq!(replay(&store, &queue, &[new.id]).await?, 1, "one dead job is replayed");
        let leased = store.lease_one(&queue).await?;
        let job = &leased.job;
        ensure_eq!((job.id, &job.payload), (new.id, &new.payload), "the job is redelivered");
        ensure_eq!((job.attempts, job.losses), (0, 0), "attempts and losses are zero");
        ensure_eq!(job.deliveries, deliveries, "`deliveries` counts all leases of the job");
        store.settle_accepted(&leased, Verdict::Release { started: false }).await?;
    }
    Ok(())
}

async fn replay_of_more_than_a_thousand(store: TrialStore) -> TrialResult {
    const JOBS: usize = 1_100;
    let queue = store.queue();
    store.create_many(&queue, JOBS, Due::NOW).await?;
    let claimed = store.lease(&queue, JOBS).await?;
    let settlements: Vec<_> =
        claimed.iter().map(|leased| Settlement::new(leased.lease(), dead("no"))).collect();
    store.backend().settle(&settlements).await?;
    store.expect_counts(&queue, Counts::dead(JOBS as u64), "after all jobs died").await?;
    ensure_eq!(store.replay_all(&queue).await?, JOBS as u64, "all dead jobs of the queue");
    store.expect_counts(&queue, Counts::ready(JOBS as u64), "after replay").await
}

async fn replay_skips_a_job_whose_key_is_live(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let keyed = |due: Due| store.keyed(&queue, due, "k", OnConflict::Keep);
    for _ in 0..2 {
        store.run_job(keyed(Due::NOW), dead("no")).await?;
    }
    ensure_eq!(store.replay_all(&queue).await?, 1, "one of two dead jobs with one key is replayed");
    let one_each = Counts { dead: 1, ..Counts::ready(1) };
    store.expect_counts(&queue, one_each, "after replay of two with one key").await?;
    ensure_eq!(store.replay_all(&queue).await?, 0, "its key is live again");
    let answer = store.schedule(keyed(Due::NOW)).await?;
    let replayed = store.lease_one(&queue).await?.job.id;
    ensure_matches!(
        answer,
        Scheduled::Kept(receipt) if receipt.id == replayed,
        "a replayed job holds its key"
    );
    Ok(())
}

async fn replay(store: &TrialStore, queue: &QueueName, jobs: &[JobId]) -> TrialResult<u64> {
    store.operate(Operation::Replay { queue, jobs, due: Due::NOW }).await
}

async fn store_dead_job(store: &TrialStore, queue: &QueueName) -> TrialResult<JobId> {
    Ok(store.run_job(store.job(queue, Due::NOW), dead("no")).await?.id)
}
