//! The dead: kept until an operator replays or removes them.

use std::time::Duration;

use dq_core::{
    DeadKind, DeadReason, Due, JobId, NewJob, OnConflict, Operation, QueueName, Scheduled, Verdict,
};

use super::failure::{Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE, ids};
use super::stand::{LATER, SOON, Stand};
use super::trial::topic;

topic! { "dead":
    dead_jobs_do_not_expire [DeadLetters, VirtualTime],
    replayed_job_starts_afresh [DeadLetters],
    replay_is_due_when_asked [DeadLetters],
    replay_of_some [DeadLetters],
    replay_of_all [DeadLetters],
    replay_of_thousands [DeadLetters],
    replay_leaves_a_key_that_is_taken [DeadLetters, Keys],
    replayed_job_holds_its_key_again [DeadLetters, Keys],
    replay_of_two_with_one_key [DeadLetters, Keys],
    replay_is_of_the_dead_only [DeadLetters],
    removed_job_is_gone [DeadLetters],
    remove_of_all [DeadLetters],
    remove_is_of_the_dead_only [DeadLetters],
    other_queues_are_left_alone [DeadLetters],
    id_of_a_dead_job_is_taken [DeadLetters],
    dead_again_after_replay [DeadLetters],
}

async fn dead_jobs_do_not_expire(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = die(&stand, stand.job(&queue, Due::NOW)).await?;
    stand.pass(LATER * 24 * 365 * 3).await?;
    stand.expect(&queue, Counts::dead(1), "three years after death").await?;
    ensure_eq!(replay(&stand, &queue, Some(&[id])).await?, 1, "it can still be replayed");
    Ok(())
}

async fn replayed_job_starts_afresh(stand: Stand) -> Passed {
    let queue = stand.queue();
    let new = stand.job(&queue, Due::NOW);
    stand.create(new.clone()).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
    stand.reach(lost.leased_until).await?;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Dead { reason: reason(), failed: true }).await?;
    ensure_eq!(replay(&stand, &queue, Some(&[new.id])).await?, 1, "one dead job is replayed");
    stand.expect(&queue, Counts::ready(1), "after replay").await?;
    let job = stand.take_one(&queue).await?.job;
    ensure_eq!((job.id, job.payload), (new.id, new.payload), "the same job comes again");
    ensure_eq!((job.attempts, job.losses), (0, 0), "attempts and losses are zero");
    ensure_eq!(job.deliveries, 3, "deliveries count every lease of the job's life");
    Ok(())
}

async fn replay_is_due_when_asked(stand: Stand) -> Passed {
    let queue = stand.queue();
    die(&stand, stand.job(&queue, Due::NOW)).await?;
    let due = stand.now().await? + SOON;
    stand.operate(Operation::Replay { queue: &queue, jobs: None, due: Due::At(due) }).await?;
    ensure_eq!(stand.stats(&queue).await?.next_due, Some(due), "due at the time given");
    stand.reach(due).await?;
    ensure_eq!(stand.take_one(&queue).await?.job.due, due, "due at the time given");
    Ok(())
}

async fn replay_of_some(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut dead = Vec::new();
    for _ in 0..4 {
        dead.push(die(&stand, stand.job(&queue, Due::NOW)).await?);
    }
    let unknown = stand.job(&queue, Due::NOW).id;
    let chosen = [dead[2], unknown, dead[0]];
    ensure_eq!(replay(&stand, &queue, Some(&chosen)).await?, 2, "those that are dead are counted");
    let mut taken = ids(&stand.take(&queue, 10).await?);
    taken.sort_unstable();
    let mut wanted = vec![dead[2], dead[0]];
    wanted.sort_unstable();
    ensure_eq!(taken, wanted, "those that were named are replayed");
    stand.expect(&queue, Counts { dead: 2, ..Counts::running(2) }, "the others stay dead").await?;
    ensure_eq!(replay(&stand, &queue, Some(&[])).await?, 0, "none named, none replayed");
    Ok(())
}

async fn replay_of_all(stand: Stand) -> Passed {
    let queue = stand.queue();
    for _ in 0..5 {
        die(&stand, stand.job(&queue, Due::NOW)).await?;
    }
    ensure_eq!(replay(&stand, &queue, None).await?, 5, "all the dead of the queue");
    stand.expect(&queue, Counts::ready(5), "after replay").await?;
    ensure_eq!(replay(&stand, &queue, None).await?, 0, "nobody is dead any more");
    Ok(())
}

async fn replay_of_thousands(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..2_500).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let settlements: Vec<_> = stand
        .take(&queue, 2_500)
        .await?
        .iter()
        .map(|leased| dq_core::Settlement {
            lease: leased.lease(),
            verdict: Verdict::Dead { reason: reason(), failed: true },
        })
        .collect();
    stand.backend().settle(&settlements).await?;
    stand.expect(&queue, Counts::dead(2_500), "after an outage of what handlers need").await?;
    ensure_eq!(replay(&stand, &queue, None).await?, 2_500, "all the dead of the queue");
    stand.expect(&queue, Counts::ready(2_500), "after replay").await
}

async fn replay_leaves_a_key_that_is_taken(stand: Stand) -> Passed {
    let queue = stand.queue();
    let keyed = |due: Due| stand.keyed(&queue, due, "k", OnConflict::Keep);
    let dead = die(&stand, keyed(Due::NOW)).await?;
    stand.create(keyed(LATER.into())).await?;
    ensure_eq!(replay(&stand, &queue, Some(&[dead])).await?, 0, "its key is live again");
    ensure_eq!(replay(&stand, &queue, None).await?, 0, "its key is live again");
    let both = Counts { dead: 1, ..Counts::scheduled(1) };
    stand.expect(&queue, both, "a job whose key is live again stays dead").await?;
    stand.take_none(&queue, "neither is due").await
}

async fn replayed_job_holds_its_key_again(stand: Stand) -> Passed {
    let queue = stand.queue();
    let dead = die(&stand, stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    replay(&stand, &queue, None).await?;
    ensure_matches!(
        stand.put(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?,
        Scheduled::Kept(receipt) if receipt.id == dead,
        "a replayed job holds its key again"
    );
    Ok(())
}

async fn replay_of_two_with_one_key(stand: Stand) -> Passed {
    let queue = stand.queue();
    for _ in 0..2 {
        die(&stand, stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    }
    ensure_eq!(replay(&stand, &queue, None).await?, 1, "at most one live job for each key");
    let one_each = Counts { dead: 1, ..Counts::ready(1) };
    stand.expect(&queue, one_each, "after replay of two with one key").await
}

async fn replay_is_of_the_dead_only(stand: Stand) -> Passed {
    let queue = stand.queue();
    let running = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one(&queue).await?;
    let waiting = stand.create(stand.job(&queue, LATER)).await?;
    let named = replay(&stand, &queue, Some(&[running, waiting.id])).await?;
    ensure_eq!(named, 0, "live jobs are not replayed");
    ensure_eq!(stand.stats(&queue).await?.next_due, Some(waiting.due), "nor moved");
    stand.accept(&taken, Verdict::Done).await?;
    ensure_eq!(replay(&stand, &stand.queue(), None).await?, 0, "a queue never seen has no dead");
    Ok(())
}

async fn removed_job_is_gone(stand: Stand) -> Passed {
    let queue = stand.queue();
    let (gone, kept) = (
        die(&stand, stand.job(&queue, Due::NOW)).await?,
        die(&stand, stand.job(&queue, Due::NOW)).await?,
    );
    let remove = Operation::Remove { queue: &queue, jobs: Some(&[gone]) };
    ensure_eq!(stand.operate(remove).await?, 1, "one dead job is removed");
    ensure_eq!(stand.operate(remove).await?, 0, "it is gone");
    ensure_eq!(replay(&stand, &queue, Some(&[gone])).await?, 0, "what is removed is not replayed");
    ensure_eq!(replay(&stand, &queue, None).await?, 1, "the other is still there");
    ensure_eq!(stand.take_one(&queue).await?.job.id, kept, "the other is still there");
    Ok(())
}

async fn remove_of_all(stand: Stand) -> Passed {
    let queue = stand.queue();
    for _ in 0..5 {
        die(&stand, stand.job(&queue, Due::NOW)).await?;
    }
    stand.create(stand.job(&queue, LATER)).await?;
    let removed = stand.operate(Operation::Remove { queue: &queue, jobs: None }).await?;
    ensure_eq!(removed, 5, "all the dead of the queue");
    stand.expect(&queue, Counts::scheduled(1), "the living stay").await
}

async fn remove_is_of_the_dead_only(stand: Stand) -> Passed {
    let queue = stand.queue();
    let running = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one(&queue).await?;
    let waiting = stand.create(stand.job(&queue, LATER)).await?.id;
    let jobs = [running, waiting];
    let removed = stand.operate(Operation::Remove { queue: &queue, jobs: Some(&jobs) }).await?;
    ensure_eq!(removed, 0, "live jobs are not removed");
    stand.accept(&taken, Verdict::Done).await?;
    stand.expect(&queue, Counts::scheduled(1), "after a removal of the living").await
}

async fn other_queues_are_left_alone(stand: Stand) -> Passed {
    let (here, there) = (stand.queue(), stand.queue());
    let other = die(&stand, stand.job(&there, Due::NOW)).await?;
    die(&stand, stand.job(&here, Due::NOW)).await?;
    let named = Some(&[other][..]);
    ensure_eq!(replay(&stand, &here, named).await?, 0, "a job of another queue");
    let removed = stand.operate(Operation::Remove { queue: &here, jobs: named }).await?;
    ensure_eq!(removed, 0, "a job of another queue");
    stand.operate(Operation::Remove { queue: &here, jobs: None }).await?;
    stand.expect(&there, Counts::dead(1), "whatever is done to the other queue").await
}

async fn id_of_a_dead_job_is_taken(stand: Stand) -> Passed {
    let queue = stand.queue();
    let new = stand.job(&queue, Due::NOW);
    die(&stand, new.clone()).await?;
    // A producer that repeats an old call must not run the job a second time.
    let again = stand.put(new).await?;
    ensure!(!again.is_stored(), "a dead job's id is still in the store: {again:?}");
    stand.expect(&queue, Counts::dead(1), "after its producer repeated the call").await
}

async fn dead_again_after_replay(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = die(&stand, stand.job(&queue, Due::NOW)).await?;
    for _ in 0..3 {
        stand.pass(Duration::from_millis(1)).await?;
        ensure_eq!(replay(&stand, &queue, Some(&[id])).await?, 1, "the dead are replayed");
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, Verdict::Dead { reason: reason(), failed: true }).await?;
        stand.expect(&queue, Counts::dead(1), "after it died again").await?;
    }
    Ok(())
}

fn reason() -> DeadReason {
    DeadReason::new(DeadKind::Exhausted, "the card service does not answer")
}

/// Runs a job to its death.
async fn die(stand: &Stand, job: NewJob) -> Passed<JobId> {
    let queue = job.queue.clone();
    let id = stand.create(job).await?.id;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Dead { reason: reason(), failed: true }).await?;
    Ok(id)
}

/// Replays at once.
async fn replay(stand: &Stand, queue: &QueueName, jobs: Option<&[JobId]>) -> Passed<u64> {
    stand.operate(Operation::Replay { queue, jobs, due: Due::NOW }).await
}
