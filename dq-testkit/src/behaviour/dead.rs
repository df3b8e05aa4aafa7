//! Dead jobs stay until an operator replays or removes them.

use std::time::Duration;

use dq_core::{
    DeadKind, DeadReason, Due, JobId, NewJob, OnConflict, Operation, QueueName, Scheduled, Verdict,
};

use super::client::{Counts, LAPSING_LEASE, ids};
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "dead":
    dead_jobs_do_not_expire [DeadLetters, VirtualTime],
    replayed_job_has_new_counts [DeadLetters],
    replay_sets_the_due_time [DeadLetters],
    replay_of_named_jobs [DeadLetters],
    replay_of_all_dead_jobs [DeadLetters],
    replay_of_thousands [DeadLetters],
    replay_skips_a_job_whose_key_is_live [DeadLetters, Keys],
    replayed_job_holds_its_key [DeadLetters, Keys],
    replay_of_two_jobs_with_one_key_replays_one [DeadLetters, Keys],
    replay_ignores_live_jobs [DeadLetters],
    removed_job_is_deleted [DeadLetters],
    remove_of_all_dead_jobs [DeadLetters],
    remove_ignores_live_jobs [DeadLetters],
    other_queues_are_not_affected [DeadLetters],
    id_of_a_dead_job_is_not_stored_again [DeadLetters],
    replayed_job_may_die_again [DeadLetters],
}

async fn dead_jobs_do_not_expire(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store_dead_job(&store, store.job(&queue, Due::NOW)).await?;
    store.wait_for(LATER * 24 * 365 * 3).await?;
    store.expect_counts(&queue, Counts::dead(1), "three years after death").await?;
    ensure_eq!(replay(&store, &queue, &[id]).await?, 1, "it can still be replayed");
    Ok(())
}

async fn replayed_job_has_new_counts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    store.create(new.clone()).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Dead { reason: reason(), failed: true }).await?;
    ensure_eq!(replay(&store, &queue, &[new.id]).await?, 1, "one dead job is replayed");
    store.expect_counts(&queue, Counts::ready(1), "after replay").await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.id, job.payload), (new.id, new.payload), "the same job is redelivered");
    ensure_eq!((job.attempts, job.losses), (0, 0), "attempts and losses are zero");
    ensure_eq!(job.deliveries, 3, "`deliveries` counts all leases of the job");
    Ok(())
}

async fn replay_sets_the_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    // After a retry, the due time differs from the first due time.
    let leased = store.lease_one(&queue).await?;
    store.wait_until(leased.job.due + Duration::from_millis(2)).await?;
    store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::dead(reason())).await?;
    let due = store.now().await? + SOON;
    store
        .operate(Operation::Replay {
            queue: &queue,
            jobs: &store.dead_ids(&queue).await?[..],
            due: Due::At(due),
        })
        .await?;
    ensure_eq!(
        store.stats(&queue).await?.next_due,
        Some(due),
        "the replayed job has the requested due time"
    );
    store.wait_until(due).await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.due, job.first_due), (due, due), "the requested due time is its first one");
    Ok(())
}

async fn replay_of_named_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut dead = Vec::new();
    for _ in 0..4 {
        dead.push(store_dead_job(&store, store.job(&queue, Due::NOW)).await?);
    }
    let unknown = store.job(&queue, Due::NOW).id;
    let named = [dead[2], unknown, dead[0]];
    ensure_eq!(replay(&store, &queue, &named).await?, 2, "only dead jobs are counted");
    let mut leased = ids(&store.lease(&queue, 10).await?);
    leased.sort_unstable();
    let mut wanted = vec![dead[2], dead[0]];
    wanted.sort_unstable();
    ensure_eq!(leased, wanted, "the named jobs are replayed");
    store
        .expect_counts(&queue, Counts { dead: 2, ..Counts::running(2) }, "the others stay dead")
        .await?;
    ensure_eq!(replay(&store, &queue, &[]).await?, 0, "an empty list of jobs replays none");
    Ok(())
}

async fn replay_of_all_dead_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for _ in 0..5 {
        store_dead_job(&store, store.job(&queue, Due::NOW)).await?;
    }
    ensure_eq!(store.replay_all(&queue).await?, 5, "all dead jobs of the queue");
    store.expect_counts(&queue, Counts::ready(5), "after replay").await?;
    ensure_eq!(store.replay_all(&queue).await?, 0, "no job is dead");
    Ok(())
}

async fn replay_of_thousands(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..2_500).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let settlements: Vec<_> = store
        .lease(&queue, 2_500)
        .await?
        .iter()
        .map(|leased| {
            dq_core::Settlement::new(
                leased.lease(),
                Verdict::Dead { reason: reason(), failed: true },
            )
        })
        .collect();
    store.backend().settle(&settlements).await?;
    store.expect_counts(&queue, Counts::dead(2_500), "after all jobs died").await?;
    ensure_eq!(store.replay_all(&queue).await?, 2_500, "all dead jobs of the queue");
    store.expect_counts(&queue, Counts::ready(2_500), "after replay").await
}

async fn replay_skips_a_job_whose_key_is_live(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let keyed = |due: Due| store.keyed(&queue, due, "k", OnConflict::Keep);
    let dead = store_dead_job(&store, keyed(Due::NOW)).await?;
    store.create(keyed(LATER.into())).await?;
    ensure_eq!(replay(&store, &queue, &[dead]).await?, 0, "its key is live again");
    ensure_eq!(store.replay_all(&queue).await?, 0, "its key is live again");
    let both = Counts { dead: 1, ..Counts::scheduled(1) };
    store.expect_counts(&queue, both, "a job whose key is live again stays dead").await?;
    store.expect_empty_claim(&queue, "neither is due").await
}

async fn replayed_job_holds_its_key(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let dead = store_dead_job(&store, store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    store.replay_all(&queue).await?;
    ensure_matches!(
        store.schedule(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?,
        Scheduled::Kept(receipt) if receipt.id == dead,
        "a replayed job holds its key"
    );
    Ok(())
}

async fn replay_of_two_jobs_with_one_key_replays_one(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for _ in 0..2 {
        store_dead_job(&store, store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    }
    ensure_eq!(store.replay_all(&queue).await?, 1, "one of two dead jobs with one key is replayed");
    let one_each = Counts { dead: 1, ..Counts::ready(1) };
    store.expect_counts(&queue, one_each, "after replay of two with one key").await
}

async fn replay_ignores_live_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let running = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    let waiting = store.create(store.job(&queue, LATER)).await?;
    let replayed = replay(&store, &queue, &[running, waiting.id]).await?;
    ensure_eq!(replayed, 0, "live jobs are not replayed");
    ensure_eq!(
        store.stats(&queue).await?.next_due,
        Some(waiting.due),
        "a scheduled job is not moved"
    );
    store.settle_accepted(&leased, Verdict::Done).await?;
    ensure_eq!(store.replay_all(&store.queue()).await?, 0, "an unknown queue has no dead jobs");
    Ok(())
}

async fn removed_job_is_deleted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let (gone, kept) = (
        store_dead_job(&store, store.job(&queue, Due::NOW)).await?,
        store_dead_job(&store, store.job(&queue, Due::NOW)).await?,
    );
    let remove = Operation::Remove { queue: &queue, jobs: &[gone] };
    ensure_eq!(store.operate(remove).await?, 1, "one dead job is removed");
    ensure_eq!(store.operate(remove).await?, 0, "it was removed already");
    ensure_eq!(replay(&store, &queue, &[gone]).await?, 0, "a removed job is not replayed");
    ensure_eq!(store.replay_all(&queue).await?, 1, "the other job is kept");
    ensure_eq!(store.lease_one(&queue).await?.job.id, kept, "the other job is kept");
    Ok(())
}

async fn remove_of_all_dead_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for _ in 0..5 {
        store_dead_job(&store, store.job(&queue, Due::NOW)).await?;
    }
    store.create(store.job(&queue, LATER)).await?;
    let removed = store
        .operate(Operation::Remove { queue: &queue, jobs: &store.dead_ids(&queue).await?[..] })
        .await?;
    ensure_eq!(removed, 5, "all dead jobs of the queue");
    store.expect_counts(&queue, Counts::scheduled(1), "live jobs are kept").await
}

async fn remove_ignores_live_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let running = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    let waiting = store.create(store.job(&queue, LATER)).await?.id;
    let jobs = [running, waiting];
    let removed = store.operate(Operation::Remove { queue: &queue, jobs: &jobs }).await?;
    ensure_eq!(removed, 0, "live jobs are not removed");
    store.settle_accepted(&leased, Verdict::Done).await?;
    store.expect_counts(&queue, Counts::scheduled(1), "after a removal of live jobs").await
}

async fn other_queues_are_not_affected(store: TrialStore) -> TrialResult {
    let (here, there) = (store.queue(), store.queue());
    let other = store_dead_job(&store, store.job(&there, Due::NOW)).await?;
    store_dead_job(&store, store.job(&here, Due::NOW)).await?;
    let named = &[other][..];
    ensure_eq!(replay(&store, &here, named).await?, 0, "a job of another queue");
    let removed = store.operate(Operation::Remove { queue: &here, jobs: named }).await?;
    ensure_eq!(removed, 0, "a job of another queue");
    store
        .operate(Operation::Remove { queue: &here, jobs: &store.dead_ids(&here).await?[..] })
        .await?;
    store.expect_counts(&there, Counts::dead(1), "after calls for another queue").await
}

async fn id_of_a_dead_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    let id = store_dead_job(&store, new.clone()).await?;
    let again = store.schedule(new).await?;
    ensure_eq!(again.id(), id, "the receipt of the dead job");
    store.expect_counts(&queue, Counts::dead(1), "after a repeated schedule call").await
}

async fn replayed_job_may_die_again(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store_dead_job(&store, store.job(&queue, Due::NOW)).await?;
    for _ in 0..3 {
        // Each death has another time, so an entry from an earlier death would count, too.
        store.wait_for(Duration::from_millis(1)).await?;
        ensure_eq!(replay(&store, &queue, &[id]).await?, 1, "the dead job is replayed");
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, Verdict::Dead { reason: reason(), failed: true }).await?;
        store.expect_counts(&queue, Counts::dead(1), "after it died again").await?;
    }
    Ok(())
}

fn reason() -> DeadReason {
    DeadReason::new(DeadKind::Exhausted, "the card service does not answer")
}

async fn store_dead_job(store: &TrialStore, job: NewJob) -> TrialResult<JobId> {
    let queue = job.queue.clone();
    let id = store.create(job).await?.id;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Dead { reason: reason(), failed: true }).await?;
    Ok(id)
}

async fn replay(store: &TrialStore, queue: &QueueName, jobs: &[JobId]) -> TrialResult<u64> {
    store.operate(Operation::Replay { queue, jobs, due: Due::NOW }).await
}
