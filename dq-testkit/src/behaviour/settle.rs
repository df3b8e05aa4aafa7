//! Settlements: the effect of each verdict.

use dq_core::{DeadKind, DeadReason, Due, JobState, Settled, Settlement, Verdict};

use super::client::{Counts, dead, next_step};
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, ShortLease, TrialStore};
use super::trial::topic;

topic! { "settle":
    finished_and_dead_jobs_never_start,
    retry_snooze_and_next_step_wait_for_their_due_time,
    retry_counts_a_failed_attempt,
    redelivered_job_is_unchanged,
    second_verdict_in_one_call_has_no_effect,
    dead_job_keeps_its_reason [browse, dead_letters],
}

async fn finished_and_dead_jobs_never_start(store: TrialStore) -> TrialResult {
    let mut settled = Vec::new();
    for verdict in [Verdict::Done, Verdict::skip("a reason"), dead("no")] {
        let held = store
            .while_leased(|store, held| {
                let verdict = verdict.clone();
                Box::pin(async move { store.settle_accepted(&held.leased, verdict).await })
            })
            .await?;
        settled.push((held, verdict));
    }
    for (ShortLease { queue, leased, .. }, verdict) in settled {
        store.wait_until(leased.leased_until).await?;
        store.expect_empty_claim(&queue, "a settled lease does not expire").await?;
        let stats = store.stats(&queue).await?;
        ensure_eq!((stats.live(), stats.next_due), (0, None), "after {verdict:?}");
    }
    Ok(())
}

async fn retry_snooze_and_next_step_wait_for_their_due_time(store: TrialStore) -> TrialResult {
    let mut verdicts =
        vec![(Verdict::retry(SOON.into(), "a reason"), 1), (Verdict::Snooze(SOON.into()), 0)];
    if store.capabilities().again {
        verdicts.push((next_step(SOON, "next"), 0));
    }
    if store.capabilities().flow {
        verdicts.push((Verdict::Throttle(SOON.into()), 0));
    }
    for (verdict, attempts) in verdicts {
        let queue = store.queue();
        let leased = store.start(&queue).await?;
        let before = store.now().await?;
        store.settle_accepted(&leased, verdict.clone()).await?;
        let after = store.now().await?;
        let due = store.stats(&queue).await?.next_due.unwrap_or_default();
        ensure!(
            before + SOON <= due && due <= after + SOON,
            "a delay is relative to the store's clock: {due} is not {SOON:?} after {before} to {after}"
        );
        store.wait_until(due).await?;
        let again = store.lease_one(&queue).await?.job;
        ensure_eq!(again.due, due, "the due time is that of {verdict:?}");
        ensure_eq!(
            (again.attempts, again.deliveries, again.losses),
            (attempts, 2, 0),
            "the counts after {verdict:?}"
        );
    }
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

async fn second_verdict_in_one_call_has_no_effect(store: TrialStore) -> TrialResult {
    for (first, second, counts) in [
        (Verdict::Done, Verdict::retry(Due::NOW, "a reason"), Counts::NONE),
        (Verdict::retry(LATER.into(), "a reason"), Verdict::Done, Counts::scheduled(1)),
    ] {
        let queue = store.queue();
        let lease = store.start(&queue).await?.lease();
        let both = [first, second].map(|verdict| Settlement::new(lease.clone(), verdict));
        let answers = store.backend().settle(&both).await?;
        ensure_eq!(answers, [Settled::Accepted, Settled::LostLease], "{both:?}");
        store.expect_counts(&queue, counts, "after two verdicts in one call").await?;
    }
    Ok(())
}

async fn redelivered_job_is_unchanged(store: TrialStore) -> TrialResult {
    for (verdict, is_release) in [
        (Verdict::retry(Due::NOW, "a reason"), false),
        (Verdict::Snooze(Due::NOW), false),
        (Verdict::Release { started: true }, true),
        (Verdict::Release { started: false }, true),
    ] {
        let queue = store.queue();
        let due = store.now().await? - LATER;
        let first = store.start_job(store.full_job(&queue, due)).await?;
        store.settle_accepted(&first, verdict.clone()).await?;
        let again = store.lease_one(&queue).await?.job;
        ensure_eq!(again.due == due, is_release, "only a release keeps the due time: {verdict:?}");
        let mut before = first.job;
        before.due = again.due;
        before.attempts = again.attempts;
        before.deliveries = again.deliveries;
        ensure_eq!(again, before, "{verdict:?} changes only the due time and the counts");
    }
    Ok(())
}

async fn dead_job_keeps_its_reason(store: TrialStore) -> TrialResult {
    for (kind, message, failed) in [
        (DeadKind::Exhausted, "", true),
        (DeadKind::Rejected, "card 'x' \"expired\"\n\tat line 1", false),
        (DeadKind::Undecodable, "ожидалось число", true),
        (DeadKind::Lost, "🪦", false),
        (DeadKind::Quarantined, "{}", true),
        (DeadKind::Late, "5 min after its due time", false),
    ] {
        let queue = store.queue();
        let new = store.job(&queue, Due::NOW);
        let leased = store.start_job(new.clone()).await?;
        let reason = DeadReason::new(kind, message);
        let before = store.now().await?;
        store.settle_accepted(&leased, Verdict::Dead { reason: reason.clone(), failed }).await?;
        let after = store.now().await?;
        store.expect_counts(&queue, Counts::dead(1), "after death").await?;
        let view = store.get_existing(&queue, new.id).await?;
        ensure_eq!(view.state, JobState::Dead, "the job is dead");
        ensure_eq!(view.job.payload, new.payload, "the payload is unchanged");
        ensure_eq!(
            (view.job.attempts, view.job.deliveries),
            (u32::from(failed), 1),
            "`failed: {failed}` decides whether the attempt counts as failed"
        );
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
