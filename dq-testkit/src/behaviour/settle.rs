//! Settlements: the effect of each verdict.

use std::time::Duration;

use dq_core::{DeadKind, DeadReason, Due, Headers, JobState, Settled, Settlement, Verdict};

use super::client::{Counts, LAPSING_LEASE};
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, ShortLease, TrialStore};
use super::trial::topic;

topic! { "settle":
    done_job_leaves_the_store,
    skipped_job_leaves_the_store,
    retried_job_waits_for_its_due_time,
    retry_counts_a_failed_attempt,
    retry_resets_losses,
    snooze_counts_no_attempt,
    snooze_resets_losses,
    retry_and_snooze_keep_the_first_due_time,
    delays_are_exact_to_the_millisecond [VirtualTime],
    redelivered_job_is_unchanged,
    dead_job_never_starts,
    dead_job_keeps_its_reason [Browse, DeadLetters],
    dead_verdict_may_count_a_failed_attempt [Browse, DeadLetters],
    release_before_the_start_uncounts_the_delivery,
    release_after_the_start_counts_the_delivery,
    released_job_keeps_its_due_time,
    release_keeps_losses,
    stale_lease_does_not_fail_the_batch,
    same_lease_twice_in_one_call_is_settled_once,
    answers_are_in_request_order,
    batch_of_thousands_is_settled,
    empty_batch_is_accepted,
}

async fn done_job_leaves_the_store(store: TrialStore) -> TrialResult {
    leaves_the_store(&store, Verdict::Done).await
}

async fn skipped_job_leaves_the_store(store: TrialStore) -> TrialResult {
    leaves_the_store(&store, Verdict::skip("a reason")).await
}

async fn leaves_the_store(store: &TrialStore, verdict: Verdict) -> TrialResult {
    let ShortLease { queue, leased, .. } = settle_short_lease(store, verdict).await?;
    store.expect_counts(&queue, Counts::NONE, "after the job has left the store").await?;
    store.wait_until(leased.leased_until).await?;
    store.expect_empty_claim(&queue, "a settled lease does not lapse").await
}

async fn settle_short_lease(store: &TrialStore, verdict: Verdict) -> TrialResult<ShortLease> {
    store
        .while_leased(|store, held| {
            let verdict = verdict.clone();
            Box::pin(async move { store.settle_accepted(&held.leased, verdict).await })
        })
        .await
}

async fn retried_job_waits_for_its_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    let before = store.now().await?;
    store.settle_accepted(&leased, Verdict::retry(SOON.into(), "a reason")).await?;
    let after = store.now().await?;
    let due = store.stats(&queue).await?.next_due.unwrap_or_default();
    ensure!(
        before + SOON <= due && due <= after + SOON,
        "a retry delay is relative to the store's clock: {due} is not {SOON:?} after {before} to {after}"
    );
    store.wait_until(due).await?;
    let again = store.lease_one(&queue).await?.job;
    ensure_eq!(again.due, due, "the job has the due time of its retry");
    ensure_eq!(
        (again.attempts, again.deliveries, again.losses),
        (1, 2, 0),
        "a retry counts one attempt and one delivery"
    );
    Ok(())
}

async fn retry_counts_a_failed_attempt(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW).max_attempts(3)).await?;
    // The store only counts attempts; the runner applies the limit.
    for failures in 0..6 {
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(
            (leased.job.attempts, leased.job.deliveries, leased.job.max_attempts),
            (failures, failures + 1, Some(3)),
            "`attempts` is the number of failures so far"
        );
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    }
    Ok(())
}

async fn retry_resets_losses(store: TrialStore) -> TrialResult {
    let job = job_after_lapse_and(&store, Verdict::retry(Due::NOW, "a reason")).await?;
    ensure_eq!((job.attempts, job.losses), (1, 0), "`losses` counts consecutive lapses only");
    Ok(())
}

async fn snooze_counts_no_attempt(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Snooze(SOON.into())).await?;
    let due = store.stats(&queue).await?.next_due.unwrap_or_default();
    store.wait_until(due).await?;
    let again = store.lease_one(&queue).await?.job;
    ensure_eq!(
        (again.attempts, again.deliveries, again.losses, again.due),
        (0, 2, 0, due),
        "a snooze counts no attempt"
    );
    Ok(())
}

async fn snooze_resets_losses(store: TrialStore) -> TrialResult {
    let job = job_after_lapse_and(&store, Verdict::Snooze(Due::NOW)).await?;
    ensure_eq!((job.attempts, job.losses), (0, 0), "`losses` counts consecutive lapses only");
    Ok(())
}

async fn retry_and_snooze_keep_the_first_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.create(store.job(&queue, Due::NOW)).await?.due;
    for verdict in [Verdict::retry(Due::NOW, "a reason"), Verdict::Snooze(Due::NOW)] {
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(leased.job.first_due, first, "the first run has the due time of the schedule");
        // So that the next due time differs.
        store.wait_until(leased.job.due + Duration::from_millis(2)).await?;
        store.settle_accepted(&leased, verdict).await?;
    }
    let job = store.lease_one(&queue).await?.job;
    ensure!(job.due > first, "a retry and a snooze set the due time");
    ensure_eq!(job.first_due, first, "a retry and a snooze keep the first due time");
    Ok(())
}

async fn delays_are_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let verdicts: [fn(Due) -> Verdict; 2] =
        [|due| Verdict::retry(due, "a reason"), Verdict::Snooze];
    for verdict in verdicts {
        for (ahead, is_delay) in [(1, false), (499, true), (999, false), (1_001, true)] {
            let queue = store.queue();
            store.create(store.job(&queue, Due::NOW)).await?;
            let leased = store.lease_one(&queue).await?;
            let ahead = Duration::from_millis(ahead);
            // Virtual time stands still meanwhile.
            let due = store.now().await? + ahead;
            let next = if is_delay { Due::After(ahead) } else { Due::At(due) };
            store.settle_accepted(&leased, verdict(next)).await?;
            store.wait_until(due - Duration::from_millis(1)).await?;
            store.expect_empty_claim(&queue, "the job is due in one millisecond").await?;
            store.wait_until(due).await?;
            store.lease_one(&queue).await?;
        }
    }
    Ok(())
}

async fn redelivered_job_is_unchanged(store: TrialStore) -> TrialResult {
    for verdict in [
        Verdict::retry(Due::NOW, "a reason"),
        Verdict::Snooze(Due::NOW),
        Verdict::Release { started: true },
        Verdict::Release { started: false },
    ] {
        let queue = store.queue();
        let key = store.capabilities().keys.then(|| super::store::key("k"));
        let headers = Headers::from_iter([(Headers::TRACEPARENT, "00-1-2-01")]);
        let mut new = store.job(&queue, Due::NOW).headers(headers).max_attempts(9);
        new.key = key;
        store.create(new).await?;
        let first = store.lease_one(&queue).await?;
        store.settle_accepted(&first, verdict.clone()).await?;
        let again = store.lease_one(&queue).await?.job;
        let mut before = first.job;
        before.due = again.due;
        before.attempts = again.attempts;
        before.deliveries = again.deliveries;
        ensure_eq!(again, before, "{verdict:?} changes only the due time and the counts");
    }
    Ok(())
}

async fn dead_job_never_starts(store: TrialStore) -> TrialResult {
    let reason = DeadReason::new(DeadKind::Exhausted, "five times");
    let dead = Verdict::Dead { reason, failed: true };
    let ShortLease { queue, leased, .. } = settle_short_lease(&store, dead).await?;
    store.wait_until(leased.leased_until).await?;
    store.expect_empty_claim(&queue, "the job is dead").await?;
    ensure_eq!(store.stats(&queue).await?.next_due, None, "a dead job has no next due time");
    Ok(())
}

async fn dead_job_keeps_its_reason(store: TrialStore) -> TrialResult {
    for (kind, message) in [
        (DeadKind::Exhausted, ""),
        (DeadKind::Rejected, "card 'x' \"expired\"\n\tat line 1"),
        (DeadKind::Undecodable, "ожидалось число"),
        (DeadKind::Lost, "🪦"),
        (DeadKind::Quarantined, "{}"),
        (DeadKind::Late, "5 min after its due time"),
    ] {
        let queue = store.queue();
        let new = store.job(&queue, Due::NOW);
        store.create(new.clone()).await?;
        let leased = store.lease_one(&queue).await?;
        let reason = DeadReason::new(kind, message);
        let before = store.now().await?;
        store
            .settle_accepted(&leased, Verdict::Dead { reason: reason.clone(), failed: false })
            .await?;
        let after = store.now().await?;
        store.expect_counts(&queue, Counts::dead(1), "after death").await?;
        let view = store.get_existing(&queue, new.id).await?;
        ensure_eq!(view.state, JobState::Dead, "the job is dead");
        ensure_eq!(view.job.payload, new.payload, "the payload is unchanged");
        let Some((found, since)) = view.dead else {
            return Err(Failure::new("a dead job has a reason and a time of death"));
        };
        ensure_eq!(found, reason, "the reason is unchanged");
        ensure!(
            before <= since && since <= after,
            "the time of death is that of the store's clock: {since}"
        );
    }
    Ok(())
}

async fn dead_verdict_may_count_a_failed_attempt(store: TrialStore) -> TrialResult {
    for (failed, attempts) in [(true, 2), (false, 1)] {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
        let leased = store.lease_one(&queue).await?;
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        store.settle_accepted(&leased, Verdict::Dead { reason, failed }).await?;
        let job = store.get_existing(&queue, id).await?.job;
        ensure_eq!(
            (job.attempts, job.deliveries),
            (attempts, 2),
            "`failed: {failed}` decides whether the attempt counts as failed"
        );
    }
    Ok(())
}

async fn release_before_the_start_uncounts_the_delivery(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    for _ in 0..3 {
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(
            (leased.job.deliveries, leased.job.attempts, leased.job.losses),
            (1, 0, 0),
            "a job released before its start has unchanged counts"
        );
        store.settle_accepted(&leased, Verdict::Release { started: false }).await?;
        store.expect_counts(&queue, Counts::ready(1), "right after the release").await?;
    }
    Ok(())
}

async fn release_after_the_start_counts_the_delivery(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    for deliveries in 1..=3 {
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(
            (leased.job.deliveries, leased.job.attempts, leased.job.losses),
            (deliveries, 0, 0),
            "a job released after its start counts a delivery, but no attempt and no loss"
        );
        store.settle_accepted(&leased, Verdict::Release { started: true }).await?;
        store.expect_counts(&queue, Counts::ready(1), "right after the release").await?;
    }
    Ok(())
}

async fn released_job_keeps_its_due_time(store: TrialStore) -> TrialResult {
    for started in [true, false] {
        let queue = store.queue();
        let now = store.now().await?;
        let oldest = store.create(store.job(&queue, now - LATER)).await?.id;
        let leased = store.lease_one(&queue).await?;
        let newer = store.create(store.job(&queue, now - SOON)).await?.id;
        store.settle_accepted(&leased, Verdict::Release { started }).await?;
        let order = super::client::ids(&store.lease(&queue, 10).await?);
        ensure_eq!(order, [oldest, newer], "a released job keeps its due time");
    }
    Ok(())
}

async fn release_keeps_losses(store: TrialStore) -> TrialResult {
    for started in [true, false] {
        let job = job_after_lapse_and(&store, Verdict::Release { started }).await?;
        ensure_eq!(job.losses, 1, "a release keeps `losses`");
    }
    Ok(())
}

/// The third lease's job, after one lease expires and the next is settled.
async fn job_after_lapse_and(store: &TrialStore, verdict: Verdict) -> TrialResult<dq_core::Job> {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.losses, 1, "one lease was lost");
    store.settle_accepted(&leased, verdict).await?;
    Ok(store.lease_one(&queue).await?.job)
}

async fn stale_lease_does_not_fail_the_batch(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..5).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let claimed = store.lease(&queue, 5).await?;
    let settlements: Vec<_> =
        claimed.iter().map(|leased| Settlement::new(leased.lease(), Verdict::Done)).collect();
    let middle = settlements.get(2).ok_or_else(|| Failure::new("five jobs are due"))?;
    store.settle(middle.lease.clone(), Verdict::Snooze(LATER.into())).await?;
    let answers = store.backend().settle(&settlements).await?;
    let wanted = [0, 1, 2, 3, 4].map(|n| if n == 2 { Settled::Stale } else { Settled::Accepted });
    ensure_eq!(answers, wanted, "a stale lease is `Stale`, and the rest of the batch is settled");
    store.expect_counts(&queue, Counts::scheduled(1), "after a batch with one stale lease").await
}

async fn same_lease_twice_in_one_call_is_settled_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lease = store.lease_one(&queue).await?.lease();
    let twice = [Verdict::retry(LATER.into(), "a reason"), Verdict::Done]
        .map(|verdict| Settlement::new(lease.clone(), verdict));
    ensure_eq!(
        store.backend().settle(&twice).await?,
        [Settled::Accepted, Settled::Stale],
        "a lease is settled once within one call"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after the first of two verdicts").await
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue()];
    for queue in &queues {
        store.schedule_all((0..10).map(|_| store.job(queue, Due::NOW)).collect()).await?;
    }
    let wants = queues.each_ref().map(|queue| super::client::want(queue, 10));
    let claimed = store.claim(&wants).await?.jobs;
    ensure_eq!(claimed.len(), 20, "a claim leases as many jobs as wanted");
    // Every third lease has a forged token.
    let settlements: Vec<_> = claimed
        .iter()
        .enumerate()
        .rev()
        .map(|(n, leased)| {
            let mut lease = leased.lease();
            lease.token.0 += u64::from(n % 3 == 0);
            Settlement::new(lease, Verdict::Done)
        })
        .collect();
    let answers = store.backend().settle(&settlements).await?;
    let wanted: Vec<_> = (0..claimed.len())
        .rev()
        .map(|n| if n % 3 == 0 { Settled::Stale } else { Settled::Accepted })
        .collect();
    ensure_eq!(answers, wanted, "answers are in request order");
    Ok(())
}

async fn batch_of_thousands_is_settled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..3_000).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let leased = store.lease(&queue, 3_000).await?;
    ensure_eq!(leased.len(), 3_000, "a claim leases as many jobs as wanted");
    store.settle_all_done(&leased).await?;
    store.expect_counts(&queue, Counts::NONE, "after a long batch").await
}

async fn empty_batch_is_accepted(store: TrialStore) -> TrialResult {
    ensure!(store.backend().settle(&[]).await?.is_empty(), "an empty batch has no answers");
    Ok(())
}
