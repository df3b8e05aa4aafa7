//! Leases: one per job, redelivery after expiry, and no effect of a lost lease.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::{DeadKind, DeadReason, Due, FencingToken, Lease, Renewal, Renewed, Settled, Verdict};

use super::client::{Counts, LAPSING_LEASE, LEASE, SHORT_LEASE, ensure_next_end, want};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, ShortLease, TrialStore};
use super::trial::topic;

topic! { "lease":
    lapsed_job_is_redelivered,
    lapse_is_exact_to_the_millisecond [VirtualTime],
    every_lapse_is_counted,
    lapsed_job_keeps_its_due_time,
    lapse_is_visible_without_a_claim [Browse],
    lapsed_lease_cannot_be_settled,
    stale_token_cannot_settle,
    stale_token_cannot_renew,
    forged_token_is_rejected,
    lease_is_settled_once,
    renewed_lease_does_not_lapse,
    renewal_is_relative_to_the_store_clock,
    lapsed_lease_cannot_be_renewed,
    each_renewal_has_its_own_answer,
    tokens_grow_with_each_lease,
    tokens_grow_after_replay [DeadLetters],
    tokens_grow_after_a_crash [Durable],
    concurrent_claims_lease_each_job_once,
    concurrent_claims_lease_a_lapsed_job_once,
}

/// `Again` has its own trials.
fn verdicts() -> Vec<Verdict> {
    let reason = DeadReason::new(DeadKind::Rejected, "by an earlier lease");
    vec![
        Verdict::Done,
        Verdict::skip("a reason"),
        Verdict::retry(Due::NOW, "a reason"),
        Verdict::Snooze(LATER.into()),
        Verdict::Dead { reason: reason.clone(), failed: true },
        Verdict::Dead { reason, failed: false },
        Verdict::Release { started: true },
        Verdict::Release { started: false },
    ]
}

async fn lapsed_job_is_redelivered(store: TrialStore) -> TrialResult {
    let ShortLease { queue, leased: first, .. } = store
        .while_leased(|store, held| {
            Box::pin(store.expect_empty_claim(&held.queue, "the lease is live"))
        })
        .await?;
    store.wait_until(first.leased_until).await?;
    store.expect_counts(&queue, Counts::ready(1), "after the lease has ended").await?;
    let second = store.lease_one(&queue).await?.job;
    let first = first.job;
    ensure_eq!(
        (second.id, second.payload),
        (first.id, first.payload),
        "the same job is redelivered"
    );
    ensure_eq!(second.due, first.due, "a lapse keeps the due time");
    ensure_eq!(
        (second.deliveries, second.losses, second.attempts),
        (2, 1, 0),
        "a lapse counts a delivery and a loss, not a failed attempt"
    );
    store.expect_empty_claim(&queue, "it is redelivered once").await
}

async fn lapse_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let first = store.lease_one_for(&queue, Duration::from_millis(777)).await?;
    store.wait_until(first.leased_until - Duration::from_millis(1)).await?;
    store.expect_empty_claim(&queue, "the lease ends in one millisecond").await?;
    store.wait_until(first.leased_until).await?;
    store.lease_one(&queue).await?;
    Ok(())
}

async fn every_lapse_is_counted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    for round in 1..=4 {
        let leased = store.lease_one_for(&queue, LAPSING_LEASE).await?;
        let job = &leased.job;
        ensure_eq!(
            (job.deliveries, job.losses, job.attempts),
            (round, round - 1, 0),
            "each lapse counts one delivery and one loss"
        );
        store.wait_until(leased.leased_until).await?;
    }
    Ok(())
}

async fn lapsed_job_keeps_its_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let oldest = store.create(store.job(&queue, now - LATER)).await?.id;
    let lost = store.lease_one_for(&queue, SHORT_LEASE).await?;
    let newer = store.create(store.job(&queue, now - SOON)).await?.id;
    store.wait_until(lost.leased_until).await?;
    let leased = super::client::ids(&store.lease(&queue, 10).await?);
    ensure_eq!(leased, [oldest, newer], "a lapsed job keeps its due time");
    Ok(())
}

async fn lapse_is_visible_without_a_claim(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one_for(&queue, SHORT_LEASE).await?;
    store.wait_until(leased.leased_until).await?;
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.state, dq_core::JobState::Ready, "the lapse is visible to every call");
    ensure_eq!(
        (view.job.deliveries, view.job.losses, view.leased_until),
        (1, 1, None),
        "one delivery and one loss are counted"
    );
    for (state, count) in [(dq_core::JobState::Ready, 1), (dq_core::JobState::Running, 0)] {
        ensure_eq!(store.list(&queue, state, 10).await?.len(), count, "listed once as {state}");
    }
    Ok(())
}

async fn lapsed_lease_cannot_be_settled(store: TrialStore) -> TrialResult {
    // No other claim leases the job: the lease just expires.
    for verdict in verdicts() {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        let leased = store.lease_one_for(&queue, LAPSING_LEASE).await?;
        store.wait_until(leased.leased_until).await?;
        ensure_eq!(
            store.settle(leased.lease(), verdict.clone()).await?,
            Settled::Stale,
            "a lapsed lease cannot be settled with {verdict:?}"
        );
        store
            .expect_counts(&queue, Counts::ready(1), "after a settlement with a lapsed lease")
            .await?;
        let job = store.lease_one(&queue).await?.job;
        ensure_eq!((job.attempts, job.deliveries, job.losses), (0, 2, 1), "the job is unchanged");
    }
    Ok(())
}

async fn stale_token_cannot_settle(store: TrialStore) -> TrialResult {
    for verdict in verdicts() {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        let old = store.lease_one_for(&queue, LAPSING_LEASE).await?;
        store.wait_until(old.leased_until).await?;
        let new = store.lease_one(&queue).await?;
        ensure_eq!(
            store.settle(old.lease(), verdict.clone()).await?,
            Settled::Stale,
            "a stale token cannot settle with {verdict:?}"
        );
        store.expect_counts(&queue, Counts::running(1), "after a stale settlement").await?;
        store.settle_accepted(&new, Verdict::Done).await?;
        store.expect_counts(&queue, Counts::NONE, "after the live lease was settled").await?;
    }
    Ok(())
}

async fn stale_token_cannot_renew(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let old = store.lease_one_for(&queue, SHORT_LEASE).await?;
    store.wait_until(old.leased_until).await?;
    let new = store.lease_one_for(&queue, SHORT_LEASE).await?;
    ensure_eq!(store.renew(old.lease(), LEASE).await?, Renewed::Lost, "a stale token cannot renew");
    store.wait_until(new.leased_until).await?;
    store.expect_counts(&queue, Counts::ready(1), "after a stale renewal").await
}

async fn forged_token_is_rejected(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    let lease = leased.lease();
    let other_job = store.job(&queue, Due::NOW).id;
    for forged in [
        Lease { token: FencingToken(lease.token.0 + 1), ..lease.clone() },
        Lease { token: FencingToken(lease.token.0.wrapping_sub(1)), ..lease.clone() },
        Lease { token: FencingToken(0), ..lease.clone() },
        Lease { token: FencingToken(u64::MAX), ..lease.clone() },
        Lease { job: other_job, ..lease.clone() },
    ] {
        let settled = store.settle(forged.clone(), Verdict::Done).await?;
        ensure_eq!(settled, Settled::Stale, "a forged token cannot settle");
        let renewed = store.renew(forged, LEASE).await?;
        ensure_eq!(renewed, Renewed::Lost, "a forged token cannot renew");
    }
    store.expect_counts(&queue, Counts::running(1), "after forged tokens").await?;
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn lease_is_settled_once(store: TrialStore) -> TrialResult {
    for first in verdicts() {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, first.clone()).await?;
        for second in verdicts() {
            ensure_eq!(
                store.settle(leased.lease(), second.clone()).await?,
                Settled::Stale,
                "a lease settled with {first:?} cannot be settled again with {second:?}"
            );
        }
        ensure_eq!(
            store.renew(leased.lease(), LEASE).await?,
            Renewed::Lost,
            "a settled lease cannot be renewed"
        );
    }
    Ok(())
}

async fn renewed_lease_does_not_lapse(store: TrialStore) -> TrialResult {
    store.while_leased(|store, held| Box::pin(renew_and_settle(store, held))).await?;
    Ok(())
}

async fn renew_and_settle(store: &TrialStore, held: &mut ShortLease) -> TrialResult {
    let first_end = held.leased.leased_until;
    for _ in 0..4 {
        store.wait_for(held.lease_for / 3).await?;
        let until = held.leased.leased_until;
        match store.renew(held.leased.lease(), held.lease_for).await? {
            Renewed::Until(later) if later > until => held.leased.leased_until = later,
            other => {
                return Err(Failure::new(format_args!(
                    "a renewal must extend a live lease beyond {until}: {other:?}"
                )));
            }
        }
        store.expect_empty_claim(&held.queue, "the lease was renewed").await?;
    }
    ensure!(store.now().await? >= first_end, "the original end of the lease has passed");
    store.settle_accepted(&held.leased, Verdict::Done).await
}

async fn renewal_is_relative_to_the_store_clock(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one_for(&queue, LEASE).await?;
    let before = store.now().await?;
    let renewed = store.renew(leased.lease(), LEASE * 2).await?;
    let after = store.now().await?;
    ensure_matches!(
        renewed,
        Renewed::Until(until) if (before + LEASE * 2..=after + LEASE * 2).contains(until),
        "a renewed lease has the requested length from the store's now"
    );
    let claimed = store.claim(&[want(&queue, 1)]).await?;
    let Renewed::Until(until) = renewed else { unreachable!("this is checked above") };
    ensure_next_end(&claimed, until, "the renewed lease")
}

async fn lapsed_lease_cannot_be_renewed(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one_for(&queue, SHORT_LEASE).await?;
    store.wait_until(leased.leased_until).await?;
    ensure_eq!(
        store.renew(leased.lease(), LEASE).await?,
        Renewed::Lost,
        "a lapsed lease cannot be renewed, even if the job was not leased again"
    );
    store.expect_counts(&queue, Counts::ready(1), "after a renewal of a lapsed lease").await
}

async fn each_renewal_has_its_own_answer(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..3).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let leased = store.lease(&queue, 3).await?;
    let gone = leased.get(1).ok_or_else(|| Failure::new("three jobs are due"))?;
    store.settle_accepted(gone, Verdict::Done).await?;
    let renewals: Vec<_> = leased.iter().map(|l| Renewal::new(l.lease(), LEASE)).collect();
    ensure_matches!(
        store.backend().renew(&renewals).await?[..],
        [Renewed::Until(_), Renewed::Lost, Renewed::Until(_)],
        "each renewal has its own answer, in request order"
    );
    let none = store.backend().renew(&[]).await?;
    ensure!(none.is_empty(), "an empty batch has no answers");
    Ok(())
}

async fn tokens_grow_with_each_lease(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let mut last = store.lease_one(&queue).await?;
    for verdict in [
        Verdict::retry(Due::NOW, "a reason"),
        Verdict::Snooze(Due::NOW),
        Verdict::Release { started: true },
        Verdict::Release { started: false },
        Verdict::retry(Due::NOW, "a reason"),
    ] {
        store.settle_accepted(&last, verdict.clone()).await?;
        let next = store.lease_one(&queue).await?;
        ensure!(
            next.token > last.token,
            "the token grows after {verdict:?}: {} is not above {}",
            next.token,
            last.token
        );
        last = next;
    }
    store.settle_accepted(&last, Verdict::retry(Due::NOW, "a reason")).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let next = store.lease_one(&queue).await?;
    ensure!(next.token > lost.token, "the token grows after a lapse");
    Ok(())
}

async fn tokens_grow_after_replay(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let first = store.lease_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    store.settle_accepted(&first, Verdict::Dead { reason, failed: true }).await?;
    store.replay_all(&queue).await?;
    let second = store.lease_one(&queue).await?;
    ensure!(second.token > first.token, "the token grows after a replay");
    Ok(())
}

async fn tokens_grow_after_a_crash(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let first = store.lease_one_for(&queue, SHORT_LEASE).await?;
    let store = store.crash().await?;
    store.wait_until(first.leased_until).await?;
    let second = store.lease_lost_one(&store, &queue).await?;
    ensure!(second.token > first.token, "the token grows after a crash");
    let stale = store.settle(first.lease(), Verdict::Done).await?;
    ensure_eq!(stale, Settled::Stale, "a lapsed lease from before the crash is stale");
    Ok(())
}

async fn concurrent_claims_lease_each_job_once(store: TrialStore) -> TrialResult {
    const JOBS: usize = 300;
    let queue = store.queue();
    store.schedule_all((0..JOBS).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let claimers = (0..6).map(|_| {
        let (client, queue) = (store.client(), queue.clone());
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claimed = client.lease(&queue, 7).await?;
                if claimed.is_empty() {
                    return TrialResult::Ok(mine);
                }
                mine.extend(claimed);
            }
        })
    });
    let mut leases = HashMap::new();
    for claimer in claimers.collect::<Vec<_>>() {
        for leased in claimer.await.map_err(Failure::new)?? {
            let double = leases.insert(leased.job.id, leased.token);
            ensure!(double.is_none(), "job {} has two live leases", leased.job.id);
        }
    }
    ensure_eq!(leases.len(), JOBS, "concurrent claims lease every job");
    Ok(())
}

async fn concurrent_claims_lease_a_lapsed_job_once(store: TrialStore) -> TrialResult {
    for _ in 0..10 {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
        store.wait_until(lost.leased_until).await?;
        let claimers = (0..4).map(|_| {
            let (client, queue) = (store.client(), queue.clone());
            tokio::spawn(async move { client.lease(&queue, 1).await })
        });
        let mut count = 0;
        for claimer in claimers.collect::<Vec<_>>() {
            count += claimer.await.map_err(Failure::new)??.len();
        }
        ensure_eq!(count, 1, "concurrent claims lease a lapsed job once");
    }
    Ok(())
}
