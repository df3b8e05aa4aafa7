//! Settlements: every verdict does what it says, and to the one job it is about.

use std::time::Duration;

use dq_core::{DeadKind, DeadReason, Due, Headers, JobState, NewJob, Settled, Settlement, Verdict};

use super::failure::{Failure, Passed, ensure, ensure_eq};
use super::handle::{Counts, SHORT_LEASE};
use super::stand::{Held, LATER, SOON, Stand};
use super::trial::topic;

topic! { "settle":
    done_leaves_the_store,
    skip_leaves_the_store,
    retry_waits_for_its_time,
    retry_counts_each_failure,
    retry_forgives_losses,
    snooze_uses_no_attempt,
    snooze_forgives_losses,
    delays_are_kept_to_the_millisecond [VirtualTime],
    job_comes_back_as_it_was,
    dead_never_starts,
    dead_is_kept_with_its_reason [Browse, DeadLetters],
    death_may_count_as_a_failure [Browse, DeadLetters],
    release_before_the_start_takes_the_delivery_back,
    release_after_the_start_keeps_the_delivery,
    released_job_keeps_its_place,
    release_forgives_nothing,
    stale_lease_does_not_spoil_the_batch,
    same_lease_twice_in_one_call,
    answers_come_in_the_order_asked,
    thousands_in_one_call,
    no_settlements_is_no_error,
}

async fn done_leaves_the_store(stand: Stand) -> Passed {
    leaves_the_store(&stand, Verdict::Done).await
}

async fn skip_leaves_the_store(stand: Stand) -> Passed {
    leaves_the_store(&stand, Verdict::Skip).await
}

async fn leaves_the_store(stand: &Stand, verdict: Verdict) -> Passed {
    let Held { queue, taken, .. } = hold_and_accept(stand, verdict).await?;
    stand.expect(&queue, Counts::NONE, "once the job has left the store").await?;
    stand.reach(taken.leased_until).await?;
    stand.take_none(&queue, "what is settled does not lapse").await
}

/// Ends a lease that would soon end by itself.
async fn hold_and_accept(stand: &Stand, verdict: Verdict) -> Passed<Held> {
    stand
        .hold(|stand, held| {
            let verdict = verdict.clone();
            Box::pin(async move { stand.accept(&held.taken, verdict).await })
        })
        .await
}

async fn retry_waits_for_its_time(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    let before = stand.now().await?;
    stand.accept(&taken, Verdict::Retry(SOON.into())).await?;
    let after = stand.now().await?;
    let due = stand.stats(&queue).await?.next_due.unwrap_or_default();
    ensure!(
        before + SOON <= due && due <= after + SOON,
        "a backoff counts from the store's now: {due} is not {SOON:?} after {before} to {after}"
    );
    stand.reach(due).await?;
    let again = stand.take_one(&queue).await?.job;
    ensure_eq!(again.due, due, "the job is due at the time of its retry");
    ensure_eq!(
        (again.attempts, again.deliveries, again.losses),
        (1, 2, 0),
        "a failure is one attempt more"
    );
    Ok(())
}

async fn retry_counts_each_failure(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(NewJob { max_attempts: Some(3), ..stand.job(&queue, Due::NOW) }).await?;
    // The store counts; the limit is the runner's to apply.
    for failures in 0..6 {
        let taken = stand.take_one(&queue).await?;
        ensure_eq!(
            (taken.job.attempts, taken.job.deliveries, taken.job.max_attempts),
            (failures, failures + 1, Some(3)),
            "attempts count the failures so far"
        );
        stand.accept(&taken, Verdict::Retry(Due::NOW)).await?;
    }
    Ok(())
}

async fn retry_forgives_losses(stand: Stand) -> Passed {
    let job = lose_then(&stand, Verdict::Retry(Due::NOW)).await?;
    ensure_eq!((job.attempts, job.losses), (1, 0), "losses count lapses in a row only");
    Ok(())
}

async fn snooze_uses_no_attempt(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Snooze(SOON.into())).await?;
    let due = stand.stats(&queue).await?.next_due.unwrap_or_default();
    stand.reach(due).await?;
    let again = stand.take_one(&queue).await?.job;
    ensure_eq!(
        (again.attempts, again.deliveries, again.losses, again.due),
        (0, 2, 0, due),
        "not yet is no failure"
    );
    Ok(())
}

async fn snooze_forgives_losses(stand: Stand) -> Passed {
    let job = lose_then(&stand, Verdict::Snooze(Due::NOW)).await?;
    ensure_eq!((job.attempts, job.losses), (0, 0), "losses count lapses in a row only");
    Ok(())
}

async fn delays_are_kept_to_the_millisecond(stand: Stand) -> Passed {
    let verdicts: [fn(Due) -> Verdict; 2] = [Verdict::Retry, Verdict::Snooze];
    for verdict in verdicts {
        for ahead in [1, 499, 999, 1_001] {
            let queue = stand.queue();
            stand.create(stand.job(&queue, Due::NOW)).await?;
            let taken = stand.take_one(&queue).await?;
            let due = stand.now().await? + Duration::from_millis(ahead);
            stand.accept(&taken, verdict(Due::At(due))).await?;
            stand.reach(due - Duration::from_millis(1)).await?;
            stand.take_none(&queue, "the job comes again in one millisecond").await?;
            stand.reach(due).await?;
            stand.take_one(&queue).await?;
        }
    }
    Ok(())
}

async fn job_comes_back_as_it_was(stand: Stand) -> Passed {
    for verdict in [
        Verdict::Retry(Due::NOW),
        Verdict::Snooze(Due::NOW),
        Verdict::Release { started: true },
        Verdict::Release { started: false },
    ] {
        let queue = stand.queue();
        let key = stand.capabilities().keys.then(|| super::stand::key("k"));
        let headers = Headers::from_iter([(Headers::TRACEPARENT, "00-1-2-01")]);
        let new = NewJob { key, headers, max_attempts: Some(9), ..stand.job(&queue, Due::NOW) };
        stand.create(new).await?;
        let first = stand.take_one(&queue).await?;
        stand.accept(&first, verdict.clone()).await?;
        let again = stand.take_one(&queue).await?.job;
        let before = dq_core::Job {
            due: again.due,
            attempts: again.attempts,
            deliveries: again.deliveries,
            ..first.job
        };
        ensure_eq!(again, before, "but for due time and counts {verdict:?} changes nothing");
    }
    Ok(())
}

async fn dead_never_starts(stand: Stand) -> Passed {
    let reason = DeadReason::new(DeadKind::Exhausted, "five times");
    let dead = Verdict::Dead { reason, failed: true };
    let Held { queue, taken, .. } = hold_and_accept(&stand, dead).await?;
    stand.reach(taken.leased_until).await?;
    stand.take_none(&queue, "the job is dead").await?;
    ensure_eq!(stand.stats(&queue).await?.next_due, None, "nobody waits for the dead");
    Ok(())
}

async fn dead_is_kept_with_its_reason(stand: Stand) -> Passed {
    for (kind, message) in [
        (DeadKind::Exhausted, ""),
        (DeadKind::Rejected, "card 'x' \"expired\"\n\tat line 1"),
        (DeadKind::Undecodable, "ожидалось число"),
        (DeadKind::Lost, "🪦"),
        (DeadKind::Quarantined, "{}"),
    ] {
        let queue = stand.queue();
        let new = stand.job(&queue, Due::NOW);
        stand.create(new.clone()).await?;
        let taken = stand.take_one(&queue).await?;
        let reason = DeadReason::new(kind, message);
        let before = stand.now().await?;
        stand.accept(&taken, Verdict::Dead { reason: reason.clone(), failed: false }).await?;
        let after = stand.now().await?;
        stand.expect(&queue, Counts::dead(1), "after death").await?;
        let view = stand.view(&queue, new.id).await?;
        ensure_eq!(view.state, JobState::Dead, "the job is shown as dead");
        ensure_eq!(view.job.payload, new.payload, "the original bytes are kept");
        let Some((found, since)) = view.dead else {
            return Err(Failure::new("a dead job says why and since when"));
        };
        ensure_eq!(found, reason, "the reason is kept as given");
        ensure!(before <= since && since <= after, "the time of death is the store's now: {since}");
    }
    Ok(())
}

async fn death_may_count_as_a_failure(stand: Stand) -> Passed {
    for (failed, attempts) in [(true, 2), (false, 1)] {
        let queue = stand.queue();
        let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, Verdict::Retry(Due::NOW)).await?;
        let taken = stand.take_one(&queue).await?;
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        stand.accept(&taken, Verdict::Dead { reason, failed }).await?;
        let job = stand.view(&queue, id).await?.job;
        ensure_eq!(
            (job.attempts, job.deliveries),
            (attempts, 2),
            "`failed: {failed}` says whether the last attempt counts as a failed one"
        );
    }
    Ok(())
}

async fn release_before_the_start_takes_the_delivery_back(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    for _ in 0..3 {
        let taken = stand.take_one(&queue).await?;
        ensure_eq!(
            (taken.job.deliveries, taken.job.attempts, taken.job.losses),
            (1, 0, 0),
            "what was handed back unstarted leaves no trace in the counts"
        );
        stand.accept(&taken, Verdict::Release { started: false }).await?;
        stand.expect(&queue, Counts::ready(1), "at once after it was handed back").await?;
    }
    Ok(())
}

async fn release_after_the_start_keeps_the_delivery(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    for deliveries in 1..=3 {
        let taken = stand.take_one(&queue).await?;
        ensure_eq!(
            (taken.job.deliveries, taken.job.attempts, taken.job.losses),
            (deliveries, 0, 0),
            "what was started counts as a delivery, not as a failure or a loss"
        );
        stand.accept(&taken, Verdict::Release { started: true }).await?;
        stand.expect(&queue, Counts::ready(1), "at once after it was handed back").await?;
    }
    Ok(())
}

async fn released_job_keeps_its_place(stand: Stand) -> Passed {
    for started in [true, false] {
        let queue = stand.queue();
        let now = stand.now().await?;
        let oldest = stand.create(stand.job(&queue, now - LATER)).await?.id;
        let taken = stand.take_one(&queue).await?;
        let newer = stand.create(stand.job(&queue, now - SOON)).await?.id;
        stand.accept(&taken, Verdict::Release { started }).await?;
        let order = super::handle::ids(&stand.take(&queue, 10).await?);
        ensure_eq!(order, [oldest, newer], "a job handed back is due at its old time");
    }
    Ok(())
}

async fn release_forgives_nothing(stand: Stand) -> Passed {
    let job = lose_then(&stand, Verdict::Release { started: true }).await?;
    ensure_eq!(job.losses, 1, "losses are forgiven by a retry or a snooze, not by a release");
    Ok(())
}

/// Lets one lease lapse, ends the next one like this, and returns the job of the third.
async fn lose_then(stand: &Stand, verdict: Verdict) -> Passed<dq_core::Job> {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
    stand.reach(lost.leased_until).await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(taken.job.losses, 1, "one lease was lost");
    stand.accept(&taken, verdict).await?;
    Ok(stand.take_one(&queue).await?.job)
}

async fn stale_lease_does_not_spoil_the_batch(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..5).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let taken = stand.take(&queue, 5).await?;
    let settlements: Vec<_> = taken
        .iter()
        .map(|leased| Settlement { lease: leased.lease(), verdict: Verdict::Done })
        .collect();
    let middle = settlements.get(2).ok_or_else(|| Failure::new("five jobs are due"))?;
    stand.settle(middle.lease.clone(), Verdict::Snooze(LATER.into())).await?;
    let answers = stand.backend().settle(&settlements).await?;
    let wanted = [0, 1, 2, 3, 4].map(|n| if n == 2 { Settled::Stale } else { Settled::Accepted });
    ensure_eq!(
        answers,
        wanted,
        "a stale lease is told so, and the others of the batch are settled"
    );
    stand.expect(&queue, Counts::scheduled(1), "the stale one changed nothing").await
}

async fn same_lease_twice_in_one_call(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lease = stand.take_one(&queue).await?.lease();
    let twice = [Verdict::Retry(LATER.into()), Verdict::Done]
        .map(|verdict| Settlement { lease: lease.clone(), verdict });
    ensure_eq!(
        stand.backend().settle(&twice).await?,
        [Settled::Accepted, Settled::Stale],
        "within one call too a lease ends once"
    );
    stand.expect(&queue, Counts::scheduled(1), "the first verdict holds").await
}

async fn answers_come_in_the_order_asked(stand: Stand) -> Passed {
    let queues = [stand.queue(), stand.queue()];
    for queue in &queues {
        stand.put_all((0..10).map(|_| stand.job(queue, Due::NOW)).collect()).await?;
    }
    let wants = queues.each_ref().map(|queue| super::handle::want(queue, 10));
    let taken = stand.claim(&wants).await?.jobs;
    // Every third lease is one that was never given out.
    let settlements: Vec<_> = taken
        .iter()
        .enumerate()
        .rev()
        .map(|(n, leased)| {
            let mut lease = leased.lease();
            lease.token.0 += u64::from(n % 3 == 0);
            Settlement { lease, verdict: Verdict::Done }
        })
        .collect();
    let answers = stand.backend().settle(&settlements).await?;
    let wanted: Vec<_> = (0..taken.len())
        .rev()
        .map(|n| if n % 3 == 0 { Settled::Stale } else { Settled::Accepted })
        .collect();
    ensure_eq!(answers, wanted, "answers come in the order asked");
    Ok(())
}

async fn thousands_in_one_call(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..3_000).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let taken = stand.take(&queue, 3_000).await?;
    ensure_eq!(taken.len(), 3_000, "a claim gives as many as are wanted");
    stand.finish_all(&taken).await?;
    stand.expect(&queue, Counts::NONE, "after a long settlement").await
}

async fn no_settlements_is_no_error(stand: Stand) -> Passed {
    ensure!(stand.backend().settle(&[]).await?.is_empty(), "no settlements, no answers");
    Ok(())
}
