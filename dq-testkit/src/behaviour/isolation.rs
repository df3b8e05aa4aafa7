//! Isolation: what is done to one queue touches no other, and purge takes no more than it says.

use dq_core::{
    DeadKind, DeadReason, Due, NewJob, OnConflict, Operation, QueueName, Scheduled, Verdict,
};

use super::failure::{Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE};
use super::stand::{LATER, Stand};
use super::trial::topic;

topic! { "isolation":
    purge_takes_what_waits_and_what_is_dead,
    purge_lets_running_jobs_finish,
    purge_of_nothing,
    purge_of_thousands,
    purge_frees_ids_and_keys [Keys],
    purge_touches_its_queue_only,
    queue_lives_on_after_a_purge,
    names_that_resemble_each_other_stay_apart,
}

async fn purge_takes_what_waits_and_what_is_dead(stand: Stand) -> Passed {
    let queue = stand.queue();
    in_every_state(&stand, &queue).await?;
    let stored = stand.stats(&queue).await?;
    let purged = stand.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(purged, stored.stored() - stored.running, "all but the running are counted");
    stand.expect(&queue, Counts::running(1), "after a purge").await
}

async fn purge_lets_running_jobs_finish(stand: Stand) -> Passed {
    for verdict in [Verdict::Done, Verdict::Retry(Due::NOW)] {
        let queue = stand.queue();
        stand.create(stand.job(&queue, Due::NOW)).await?;
        let taken = stand.take_one(&queue).await?;
        ensure_eq!(stand.operate(Operation::Purge { queue: &queue }).await?, 0, "it runs");
        stand.accept(&taken, verdict).await?;
    }
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
    stand.reach(lost.leased_until).await?;
    let purged = stand.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(purged, 1, "a job whose lease has ended waits, it does not run");
    Ok(())
}

async fn purge_of_nothing(stand: Stand) -> Passed {
    let queue = stand.queue();
    ensure_eq!(stand.operate(Operation::Purge { queue: &queue }).await?, 0, "never seen");
    in_every_state(&stand, &queue).await?;
    stand.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(stand.operate(Operation::Purge { queue: &queue }).await?, 0, "purged already");
    Ok(())
}

async fn purge_of_thousands(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut jobs: Vec<NewJob> = (0..1_500).map(|_| stand.job(&queue, LATER)).collect();
    jobs.extend((0..1_500).map(|_| stand.job(&queue, Due::NOW)));
    stand.put_all(jobs).await?;
    let purged = stand.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(purged, 3_000, "a purge takes everything, however much it is");
    stand.expect(&queue, Counts::NONE, "after a purge").await
}

async fn purge_frees_ids_and_keys(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.keyed(&queue, LATER, "k", OnConflict::Keep);
    stand.create(job.clone()).await?;
    stand.operate(Operation::Purge { queue: &queue }).await?;
    ensure_matches!(stand.put(job).await?, Scheduled::Created(_), "neither id nor key is live");
    Ok(())
}

async fn purge_touches_its_queue_only(stand: Stand) -> Passed {
    let (purged, other, paused) = (stand.queue(), stand.queue(), stand.queue());
    for queue in [&purged, &other, &paused] {
        in_every_state(&stand, queue).await?;
    }
    if stand.capabilities().pause {
        stand.operate(Operation::Pause { queue: &paused }).await?;
    }
    let before = stand.backend().stats(&[other.clone(), paused.clone()]).await?;
    stand.operate(Operation::Purge { queue: &purged }).await?;
    let after = stand.backend().stats(&[other, paused]).await?;
    ensure_eq!(after, before, "a purge touches its own queue only");
    Ok(())
}

async fn queue_lives_on_after_a_purge(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..3).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    stand.operate(Operation::Purge { queue: &queue }).await?;
    stand.take_none(&queue, "it was purged").await?;
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(stand.take_one(&queue).await?.job.id, id, "a purge is not for ever");
    Ok(())
}

async fn names_that_resemble_each_other_stay_apart(stand: Stand) -> Passed {
    let start = stand.queue();
    // Prefixes, cases, patterns, blanks, separators, composed and decomposed letters.
    let ends = ["", ":", ":a", "*", "%", "_", "?", "[a]", " ", "a", "A", "é", "e\u{301}", "{a}"];
    let mut queues = Vec::new();
    for end in ends {
        let queue = QueueName::new(format!("{start}{end}"))?;
        stand.create(stand.job(&queue, Due::NOW)).await?;
        queues.push(queue);
    }
    for (n, queue) in queues.iter().enumerate() {
        for other in &queues[n..] {
            stand.expect(other, Counts::ready(1), "whatever happens to its namesakes").await?;
        }
        if n % 2 == 0 {
            stand.take_one(queue).await?;
        } else {
            let purged = stand.operate(Operation::Purge { queue }).await?;
            ensure!(purged == 1, "queue {queue} has one job, not {purged}");
        }
    }
    Ok(())
}

/// One job in each state.
async fn in_every_state(stand: &Stand, queue: &QueueName) -> Passed {
    stand.create(stand.job(queue, Due::NOW)).await?;
    let dying = stand.take_one(queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    stand.accept(&dying, Verdict::Dead { reason, failed: true }).await?;
    stand.create(stand.job(queue, Due::NOW)).await?;
    stand.take_one(queue).await?;
    stand.put_all(vec![stand.job(queue, Due::NOW), stand.job(queue, LATER)]).await?;
    Ok(())
}
