//! Counts: each job in exactly one state, and what came in equals what is there plus what left.

use dq_core::{
    Cancelled, DeadKind, DeadReason, Due, OnConflict, Operation, QueueName, Totals, Verdict,
};

use super::failure::{Failure, Passed, ensure, ensure_eq};
use super::handle::Counts;
use super::stand::{Held, LATER, SOON, Stand};
use super::trial::topic;

topic! { "stats":
    queue_never_seen_counts_zero,
    each_job_is_in_one_state,
    state_follows_the_clock,
    counts_hold_after_each_settlement,
    next_due_is_of_jobs_that_wait,
    queues_are_answered_in_the_order_asked,
    all_queues_are_listed_by_name,
    totals_count_each_way_out [Totals],
    totals_count_cancels [Totals, Cancel],
    totals_count_replacements [Totals, Keys],
    totals_count_what_operators_remove [Totals, DeadLetters],
    totals_ignore_what_was_not_stored [Totals],
}

async fn queue_never_seen_counts_zero(stand: Stand) -> Passed {
    let stats = stand.stats(&stand.queue()).await?;
    ensure_eq!(stats.stored(), 0, "a queue never seen has no jobs");
    ensure!(!stats.paused, "a queue never seen is not paused");
    ensure_eq!(
        stats.totals,
        stand.capabilities().totals.then(Totals::default),
        "totals are there exactly if the backend keeps them"
    );
    Ok(())
}

async fn each_job_is_in_one_state(stand: Stand) -> Passed {
    let queue = stand.queue();
    bury(&stand, &queue, 4).await?;
    put(&stand, &queue, 3, Due::NOW).await?;
    stand.take(&queue, 3).await?;
    put(&stand, &queue, 2, Due::NOW).await?;
    put(&stand, &queue, 1, LATER).await?;
    let dead = if stand.capabilities().dead_letters { 4 } else { stand.stats(&queue).await?.dead };
    let wanted = Counts { scheduled: 1, ready: 2, running: 3, dead };
    stand.expect(&queue, wanted, "in all four states at once").await
}

async fn state_follows_the_clock(stand: Stand) -> Passed {
    let Held { queue, taken, .. } =
        stand.hold(|stand, held| Box::pin(another_comes_due(stand, held))).await?;
    stand.reach(taken.leased_until).await?;
    let wanted = Counts { scheduled: 1, ..Counts::ready(2) };
    stand.expect(&queue, wanted, "once a job is due and a lease has ended").await?;
    let next = stand.stats(&queue).await?.next_due;
    ensure_eq!(next, Some(taken.job.due), "a lapsed job waits since its old time");
    Ok(())
}

async fn another_comes_due(stand: &Stand, held: &Held) -> Passed {
    let due = stand.create(stand.job(&held.queue, SOON)).await?.due;
    put(stand, &held.queue, 1, LATER).await?;
    stand.reach(due).await?;
    let next = stand.stats(&held.queue).await?.next_due;
    ensure_eq!(next, Some(due), "a job that is due still waits");
    Ok(())
}

async fn counts_hold_after_each_settlement(stand: Stand) -> Passed {
    let queue = stand.queue();
    let verdicts = [
        (Verdict::Done, Counts::NONE),
        (Verdict::Skip, Counts::NONE),
        (Verdict::Retry(LATER.into()), Counts::scheduled(1)),
        (Verdict::Retry(Due::NOW), Counts::ready(1)),
        (Verdict::Snooze(LATER.into()), Counts::scheduled(1)),
        (Verdict::Release { started: true }, Counts::ready(1)),
        (Verdict::Release { started: false }, Counts::ready(1)),
    ];
    for (verdict, wanted) in verdicts {
        put(&stand, &queue, 1, Due::NOW).await?;
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, verdict.clone()).await?;
        stand.expect(&queue, wanted, &format!("right after {verdict:?}")).await?;
        stand.operate(Operation::Purge { queue: &queue }).await?;
        stand.expect(&queue, Counts::NONE, "right after a purge").await?;
    }
    Ok(())
}

async fn next_due_is_of_jobs_that_wait(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    put(&stand, &queue, 1, now - LATER).await?;
    put(&stand, &queue, 1, now - SOON).await?;
    put(&stand, &queue, 1, now + LATER).await?;
    for wanted in [now - LATER, now - SOON, now + LATER] {
        ensure_eq!(
            stand.stats(&queue).await?.next_due,
            Some(wanted),
            "`next_due` is the earliest among scheduled and ready jobs, not of leased ones"
        );
        stand.take(&queue, 1).await?;
    }
    Ok(())
}

async fn queues_are_answered_in_the_order_asked(stand: Stand) -> Passed {
    let queues = [stand.queue(), stand.queue(), stand.queue()];
    for (queue, count) in queues.iter().zip([3, 0, 1]) {
        put(&stand, queue, count, LATER).await?;
    }
    let asked = [&queues[2], &queues[0], &queues[1], &queues[0]].map(Clone::clone);
    let stats = stand.backend().stats(&asked).await?;
    let found: Vec<_> = stats.iter().map(|stats| (&stats.queue, stats.scheduled)).collect();
    let wanted: Vec<_> = asked.iter().zip([1, 3, 0, 3]).collect();
    ensure_eq!(found, wanted, "stats are of the queues asked, in that order");
    Ok(())
}

async fn all_queues_are_listed_by_name(stand: Stand) -> Passed {
    let mut queues = [stand.queue_named("b"), stand.queue_named("a"), stand.queue_named("c")];
    for queue in &queues {
        put(&stand, queue, 1, LATER).await?;
    }
    queues.sort_unstable();
    let all = stand.backend().stats(&[]).await?;
    ensure!(all.is_sorted_by(|a, b| a.queue < b.queue), "all queues are listed by name, once each");
    let ours: Vec<_> = all
        .into_iter()
        .filter(|stats| queues.contains(&stats.queue))
        .map(|stats| (stats.queue, stats.scheduled))
        .collect();
    ensure_eq!(ours, queues.map(|queue| (queue, 1)), "all queues known to the store are listed");
    Ok(())
}

async fn totals_count_each_way_out(stand: Stand) -> Passed {
    let queue = stand.queue();
    put(&stand, &queue, 7, Due::NOW).await?;
    put(&stand, &queue, 2, LATER).await?;
    let taken = stand.take(&queue, 6).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    let verdicts = [
        Verdict::Done,
        Verdict::Done,
        Verdict::Skip,
        Verdict::Retry(LATER.into()),
        Verdict::Snooze(LATER.into()),
        Verdict::Dead { reason, failed: true },
    ];
    for (leased, verdict) in taken.iter().zip(verdicts) {
        stand.accept(leased, verdict).await?;
        // Stale, and so without effect on any count.
        stand.settle(leased.lease(), Verdict::Done).await?;
    }
    expect_totals(&stand, &queue, Totals { created: 9, done: 2, skipped: 1, ..zero() }).await?;
    // One that was never taken, one retried, one snoozed, two in the future, and the dead one.
    stand.operate(Operation::Purge { queue: &queue }).await?;
    let wanted = Totals { created: 9, done: 2, skipped: 1, removed: 6, ..zero() };
    expect_totals(&stand, &queue, wanted).await
}

async fn totals_count_cancels(stand: Stand) -> Passed {
    let queue = stand.queue();
    for due in [Due::After(LATER), Due::NOW] {
        let id = stand.create(stand.job(&queue, due)).await?.id;
        ensure_eq!(stand.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
        ensure_eq!(stand.cancel(&queue, id).await?, Cancelled::NotFound, "it is gone");
    }
    expect_totals(&stand, &queue, Totals { created: 2, cancelled: 2, ..zero() }).await
}

async fn totals_count_replacements(stand: Stand) -> Passed {
    let queue = stand.queue();
    for policy in [OnConflict::Keep, OnConflict::Keep, OnConflict::Replace, OnConflict::Replace] {
        let _ = stand.put(stand.keyed(&queue, LATER, "k", policy)).await?;
    }
    expect_totals(&stand, &queue, Totals { created: 3, replaced: 2, ..zero() }).await
}

async fn totals_count_what_operators_remove(stand: Stand) -> Passed {
    let queue = stand.queue();
    bury(&stand, &queue, 3).await?;
    stand.operate(Operation::Replay { queue: &queue, jobs: None, due: Due::NOW }).await?;
    expect_totals(&stand, &queue, Totals { created: 3, ..zero() }).await?;
    for leased in stand.take(&queue, 2).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "still no");
        stand.accept(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    stand.operate(Operation::Remove { queue: &queue, jobs: None }).await?;
    expect_totals(&stand, &queue, Totals { created: 3, removed: 2, ..zero() }).await
}

async fn totals_ignore_what_was_not_stored(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.job(&queue, LATER);
    stand.create(job.clone()).await?;
    for _ in 0..3 {
        let _ = stand.put(job.clone()).await?;
    }
    expect_totals(&stand, &queue, Totals { created: 1, ..zero() }).await
}

/// `Totals` is not a constant default, so that struct update syntax reads well.
const fn zero() -> Totals {
    Totals { created: 0, done: 0, skipped: 0, cancelled: 0, replaced: 0, removed: 0 }
}

async fn expect_totals(stand: &Stand, queue: &QueueName, wanted: Totals) -> Passed {
    let found = stand.stats(queue).await?.totals;
    let found = found.ok_or_else(|| Failure::new("the backend says that it keeps totals"))?;
    ensure_eq!(found, wanted, "each job is counted once, by the way it left");
    Ok(())
}

async fn put(stand: &Stand, queue: &QueueName, count: usize, due: impl Into<Due>) -> Passed {
    let due = due.into();
    stand.put_all((0..count).map(|_| stand.job(queue, due)).collect()).await?;
    Ok(())
}

async fn bury(stand: &Stand, queue: &QueueName, count: usize) -> Passed {
    put(stand, queue, count, Due::NOW).await?;
    for leased in stand.take(queue, count).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        stand.accept(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    Ok(())
}
