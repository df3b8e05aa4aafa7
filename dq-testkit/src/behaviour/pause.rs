//! Pausing: no claims until resumed, and everything else goes on.

use dq_core::{Due, Operation, QueueName, Renewed, Verdict};

use super::failure::{Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, LEASE, SHORT_LEASE, ids, want};
use super::stand::{SOON, Stand};
use super::trial::topic;

topic! { "pause":
    paused_queue_gives_nothing [Pause],
    resumed_queue_gives_at_once [Pause],
    jobs_may_be_stored_meanwhile [Pause],
    running_jobs_finish [Pause],
    lapsed_job_waits_for_the_resume [Pause],
    other_queues_go_on [Pause],
    pause_is_shown [Pause],
    repeated_pause_changes_nothing [Pause],
    queue_never_seen_can_be_paused [Pause],
    empty_queue_stays_paused [Pause],
}

async fn paused_queue_gives_nothing(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let soon = stand.create(stand.job(&queue, SOON)).await?;
    pause(&stand, &queue).await?;
    stand.take_none(&queue, "the queue is paused").await?;
    stand.reach(soon.due).await?;
    let claimed = stand.claim(&[want(&queue, 5)]).await?;
    ensure!(claimed.jobs.is_empty(), "paused queues give nothing, whatever becomes due");
    ensure_eq!(claimed.next_due, None, "no time brings more while the queue is paused");
    stand.expect(&queue, Counts::ready(2), "while the queue is paused").await
}

async fn resumed_queue_gives_at_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    pause(&stand, &queue).await?;
    stand.take_none(&queue, "the queue is paused").await?;
    resume(&stand, &queue).await?;
    ensure_eq!(stand.take_one(&queue).await?.job.id, id, "a resumed queue gives at once");
    Ok(())
}

async fn jobs_may_be_stored_meanwhile(stand: Stand) -> Passed {
    let queue = stand.queue();
    pause(&stand, &queue).await?;
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    stand.take_none(&queue, "the queue is paused").await?;
    resume(&stand, &queue).await?;
    ensure_eq!(ids(&stand.take(&queue, 5).await?), [id], "what came meanwhile is there");
    Ok(())
}

async fn running_jobs_finish(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..3).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let taken = stand.take(&queue, 3).await?;
    pause(&stand, &queue).await?;
    let verdicts = [Verdict::Done, Verdict::Retry(Due::NOW), Verdict::Snooze(Due::NOW)];
    for (leased, verdict) in taken.iter().zip(verdicts) {
        ensure_matches!(
            stand.renew(leased.lease(), LEASE).await?,
            Renewed::Until(_),
            "leases of a paused queue are renewed"
        );
        stand.accept(leased, verdict).await?;
    }
    stand.expect(&queue, Counts::ready(2), "after the running ones finished").await?;
    stand.take_none(&queue, "the queue is paused, for retries too").await
}

async fn lapsed_job_waits_for_the_resume(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE).await?;
    pause(&stand, &queue).await?;
    stand.reach(lost.leased_until).await?;
    stand.take_none(&queue, "the queue is paused, for lapsed jobs too").await?;
    resume(&stand, &queue).await?;
    let job = stand.take_one(&queue).await?.job;
    ensure_eq!((job.deliveries, job.losses), (2, 1), "the lapse is counted");
    Ok(())
}

async fn other_queues_go_on(stand: Stand) -> Passed {
    let (paused, other) = (stand.queue(), stand.queue());
    stand.create(stand.job(&paused, Due::NOW)).await?;
    let id = stand.create(stand.job(&other, Due::NOW)).await?.id;
    pause(&stand, &paused).await?;
    let claimed = stand.claim_at_most(1, &[want(&paused, 5), want(&other, 5)]).await?;
    ensure_eq!(ids(&claimed.jobs), [id], "a paused queue takes nothing from the others' share");
    Ok(())
}

async fn pause_is_shown(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.queue());
    stand.create(stand.job(&other, Due::NOW)).await?;
    pause(&stand, &queue).await?;
    ensure!(stand.stats(&queue).await?.paused, "an operator sees that the queue is paused");
    ensure!(!stand.stats(&other).await?.paused, "the others are not");
    resume(&stand, &queue).await?;
    ensure!(!stand.stats(&queue).await?.paused, "an operator sees that the queue is not paused");
    Ok(())
}

async fn repeated_pause_changes_nothing(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    ensure_eq!(resume(&stand, &queue).await?, 0, "a queue that is not paused");
    ensure_eq!(pause(&stand, &queue).await?, 1, "the queue changed");
    ensure_eq!(pause(&stand, &queue).await?, 0, "it was paused already");
    ensure_eq!(resume(&stand, &queue).await?, 1, "one resume undoes any number of pauses");
    ensure_eq!(resume(&stand, &queue).await?, 0, "it was resumed already");
    stand.take_one(&queue).await?;
    Ok(())
}

async fn queue_never_seen_can_be_paused(stand: Stand) -> Passed {
    let queue = stand.queue();
    ensure_eq!(resume(&stand, &queue).await?, 0, "nothing to resume");
    ensure_eq!(pause(&stand, &queue).await?, 1, "a deploy may pause before the first job");
    ensure!(stand.stats(&queue).await?.paused, "the pause holds");
    Ok(())
}

async fn empty_queue_stays_paused(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    pause(&stand, &queue).await?;
    stand.operate(Operation::Purge { queue: &queue }).await?;
    stand.create(stand.job(&queue, Due::NOW)).await?;
    stand.take_none(&queue, "a purge does not resume").await
}

async fn pause(stand: &Stand, queue: &QueueName) -> Passed<u64> {
    stand.operate(Operation::Pause { queue }).await
}

async fn resume(stand: &Stand, queue: &QueueName) -> Passed<u64> {
    stand.operate(Operation::Resume { queue }).await
}
