//! Leases: one per job, redelivery after expiry, and no effect of a lost lease.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::{
    Cancelled, Due, FencingToken, JobState, Lease, LeasedJob, OnConflict, OnRunning, Operation,
    Renewed, Rescheduled, Scheduled, Settled, Verdict,
};

use super::client::{BRIEF_LEASE, Counts, LEASE, SHORT_LEASE, dead};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, ShortLease, TrialStore};
use super::trial::topic;

topic! { "lease":
    expired_job_is_redelivered,
    expiry_is_exact_to_the_millisecond [virtual_time],
    losses_count_consecutive_expiries,
    every_call_finds_an_expired_job_due,
    expired_lease_has_no_effect,
    stale_token_has_no_effect,
    forged_token_is_rejected,
    renewed_lease_does_not_expire,
    tokens_grow_with_each_lease,
    tokens_grow_after_a_crash [durable],
    concurrent_claims_lease_each_job_once,
    concurrent_claims_lease_an_expired_job_once,
}

fn every_verdict(store: &TrialStore) -> Vec<Verdict> {
    let mut verdicts = store.verdicts_to_run_again(LATER);
    verdicts.extend([Verdict::Done, Verdict::skip("a reason"), dead("by an earlier lease")]);
    verdicts
}

async fn expired_job_is_redelivered(store: TrialStore) -> TrialResult {
    let ShortLease { queue, leased: first, .. } = store
        .while_leased(|store, held| {
            Box::pin(store.expect_empty_claim(&held.queue, "the lease is live"))
        })
        .await?;
    store.wait_until(first.leased_until).await?;
    store.expect_counts(&queue, Counts::ready(1), "after the lease has ended").await?;
    let second = store.lease_one(&queue).await?.job;
    let mut wanted = first.job;
    (wanted.deliveries, wanted.losses) = (2, 1);
    ensure_eq!(second, wanted, "an expiry counts a delivery and a loss, and changes nothing else");
    store.expect_empty_claim(&queue, "it is redelivered once").await
}

async fn expiry_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let first = store.lease_one_for(&queue, Duration::from_millis(777)).await?;
    store.wait_until(first.leased_until - Duration::from_millis(1)).await?;
    store.expect_empty_claim(&queue, "the lease ends in one millisecond").await?;
    store.wait_until(first.leased_until).await?;
    store.lease_one(&queue).await?;
    Ok(())
}

async fn losses_count_consecutive_expiries(store: TrialStore) -> TrialResult {
    let verdicts = [
        (Verdict::Release { started: true }, 2),
        (Verdict::Release { started: false }, 2),
        (Verdict::retry(Due::NOW, "a reason"), 0),
        (Verdict::Snooze(Due::NOW), 0),
    ];
    for (verdict, losses) in verdicts {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        for _ in 0..2 {
            store.lose_lease(&queue).await?;
        }
        let leased = store.lease_one(&queue).await?;
        let job = &leased.job;
        ensure_eq!((job.deliveries, job.losses, job.attempts), (3, 2, 0), "after two expiries");
        store.settle_accepted(&leased, verdict.clone()).await?;
        let found = store.lease_one(&queue).await?.job.losses;
        ensure_eq!(found, losses, "`losses` after {verdict:?}");
    }
    Ok(())
}

/// The calls treat a job with an expired lease like any other that waits.
async fn every_call_finds_an_expired_job_due(store: TrialStore) -> TrialResult {
    let can = store.capabilities();
    expired_job_is_counted_and_listed_as_ready(&store).await?;
    let lost = store.lose_job(store.job(&store.queue(), Due::NOW)).await?;
    let purge = Operation::Purge { queue: &lost.job.queue };
    ensure_eq!(store.operate(purge).await?, 1, "a purge removes it");
    if can.cancel {
        let lost = store.lose_job(store.job(&store.queue(), Due::NOW)).await?;
        let answer = store.cancel(&lost.job.queue, lost.job.id).await?;
        ensure_eq!(answer, Cancelled::Cancelled, "an expired job is waiting, not running");
        expect_lost(&store, &lost).await?;
        store.expect_empty_claim(&lost.job.queue, "the job was cancelled").await?;
    }
    if can.reschedule {
        let lost = store.lose_job(store.job(&store.queue(), Due::NOW)).await?;
        let answer = store.reschedule(&lost.job.queue, lost.job.id, LATER).await?;
        ensure_matches!(answer, Rescheduled::Moved(_), "an expired job is waiting, not running");
        expect_lost(&store, &lost).await?;
        store.expect_empty_claim(&lost.job.queue, "it is due in an hour").await?;
    }
    if can.keys {
        expired_job_is_replaced_and_not_detached(&store).await?;
    }
    Ok(())
}

async fn expired_job_is_counted_and_listed_as_ready(store: &TrialStore) -> TrialResult {
    let (can, queue) = (store.capabilities(), store.queue());
    let due = store.lose_job(store.job(&queue, store.now().await? - LATER)).await?.job.due;
    store.expect_counts(&queue, Counts::ready(1), "after the lease has expired").await?;
    ensure_eq!(store.stats(&queue).await?.next_due, Some(due), "an expired job keeps its due time");
    if can.browse {
        let listed = store.list(&queue, JobState::Ready, 10).await?;
        let counts: Vec<_> = listed
            .iter()
            .map(|view| (view.job.deliveries, view.job.losses, view.leased_until))
            .collect();
        ensure_eq!(counts, [(1, 1, None)], "one delivery and one loss are counted");
        ensure_eq!(store.list(&queue, JobState::Running, 10).await?, [], "the job does not run");
    }
    if can.forecast {
        let edges = [due, due + Duration::from_millis(1)];
        let counts = store.backend().forecast(&queue, &edges).await?;
        ensure_eq!(counts, [1], "a forecast counts an expired job at its old due time");
    }
    let newer = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease(&queue, 10).await?;
    ensure_eq!(leased.get(1).map(|leased| leased.job.id), Some(newer), "the older job is first");
    Ok(())
}

async fn expired_job_is_replaced_and_not_detached(store: &TrialStore) -> TrialResult {
    let queue = store.queue();
    let lost = store.lose_job(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    if store.capabilities().detach {
        let job = store.keyed(&queue, LATER, "k", OnConflict::Keep);
        let answer = store.schedule(job.on_running(OnRunning::Detach)).await?;
        ensure_matches!(answer, Scheduled::Kept(_), "an expired job is not detached");
    }
    let new = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    let answer = store.schedule(new.clone()).await?;
    ensure_matches!(answer, Scheduled::Replaced(_), "an expired job is replaced");
    expect_lost(store, &lost).await?;
    ensure_eq!(store.lease_one(&queue).await?.job.id, new.id, "the new job runs");
    Ok(())
}

async fn expect_lost(store: &TrialStore, lost: &LeasedJob) -> TrialResult {
    let answer = store.settle(lost.lease(), Verdict::retry(Due::NOW, "a reason")).await?;
    ensure_eq!(answer, Settled::LostLease, "the expired lease is lost");
    Ok(())
}

async fn expired_lease_has_no_effect(store: TrialStore) -> TrialResult {
    lost_lease_has_no_effect(&store, Lost::Expired).await
}

async fn stale_token_has_no_effect(store: TrialStore) -> TrialResult {
    lost_lease_has_no_effect(&store, Lost::LeasedAgain).await
}

/// What has happened to a lease before its holder makes a call with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// No other claim has leased the job.
    Expired,
    LeasedAgain,
}

async fn lost_lease_has_no_effect(store: &TrialStore, how: Lost) -> TrialResult {
    let verdicts = every_verdict(store);
    let mut lost = Vec::new();
    for _ in 0..=verdicts.len() {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        lost.push(store.lease_one_for(&queue, BRIEF_LEASE).await?);
    }
    let renewed = lost.pop().ok_or_else(|| Failure::new("a job was leased"))?;
    store.wait_until(renewed.leased_until).await?;
    for (lost, verdict) in lost.iter().zip(verdicts) {
        settlement_has_no_effect(store, lost, verdict, how).await?;
    }
    renewal_has_no_effect(store, &renewed, how).await
}

async fn settlement_has_no_effect(
    store: &TrialStore,
    lost: &LeasedJob,
    verdict: Verdict,
    how: Lost,
) -> TrialResult {
    let queue = &lost.job.queue;
    let newer = match how {
        Lost::Expired => None,
        Lost::LeasedAgain => Some(store.lease_one(queue).await?),
    };

    let answer = store.settle(lost.lease(), verdict.clone()).await?;

    ensure_eq!(answer, Settled::LostLease, "a lost lease cannot be settled with {verdict:?}");
    let counts = if newer.is_some() { Counts::running(1) } else { Counts::ready(1) };
    store.expect_counts(queue, counts, "after a settlement with a lost lease").await?;
    let newer = match newer {
        Some(newer) => newer,
        None => store.lease_one(queue).await?,
    };
    let job = &newer.job;
    ensure_eq!((job.attempts, job.deliveries, job.losses), (0, 2, 1), "after {verdict:?}");
    ensure_eq!(job.payload, lost.job.payload, "the payload after {verdict:?}");
    store.settle_accepted(&newer, Verdict::Done).await
}

async fn renewal_has_no_effect(store: &TrialStore, lost: &LeasedJob, how: Lost) -> TrialResult {
    let queue = &lost.job.queue;
    let newer = match how {
        Lost::Expired => None,
        Lost::LeasedAgain => Some(store.lease_one_for(queue, SHORT_LEASE).await?),
    };

    let answer = store.renew(lost.lease(), LEASE).await?;

    ensure_eq!(answer, Renewed::LostLease, "a lost lease cannot be renewed");
    if let Some(newer) = newer {
        store.wait_until(newer.leased_until).await?;
    }
    store.expect_counts(queue, Counts::ready(1), "after a renewal of a lost lease").await
}

async fn forged_token_is_rejected(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let leased = store.start(&queue).await?;
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
        ensure_eq!(settled, Settled::LostLease, "a forged token cannot settle");
        let renewed = store.renew(forged, LEASE).await?;
        ensure_eq!(renewed, Renewed::LostLease, "a forged token cannot renew");
    }
    store.expect_counts(&queue, Counts::running(1), "after forged tokens").await?;
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn renewed_lease_does_not_expire(store: TrialStore) -> TrialResult {
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

async fn tokens_grow_with_each_lease(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut last = store.start(&queue).await?;
    let mut verdicts = store.verdicts_to_run_again(Due::NOW);
    if store.capabilities().dead_letters {
        verdicts.push(dead("no"));
    }
    for verdict in verdicts {
        store.settle_accepted(&last, verdict.clone()).await?;
        if matches!(verdict, Verdict::Dead { .. }) {
            store.replay_all(&queue).await?;
        }
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
    let lost = store.lose_lease(&queue).await?;
    let next = store.lease_one(&queue).await?;
    ensure!(next.token > lost.token, "the token grows after an expiry");
    Ok(())
}

async fn tokens_grow_after_a_crash(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let first = store.lease_one_for(&queue, BRIEF_LEASE).await?;
    let store = store.crash().await?;
    store.wait_until(first.leased_until).await?;
    let second = store.lease_lost_one(&store, &queue).await?;
    ensure!(second.token > first.token, "the token grows after a crash");
    let stale = store.settle(first.lease(), Verdict::Done).await?;
    ensure_eq!(stale, Settled::LostLease, "an expired lease from before the crash is stale");
    Ok(())
}

async fn concurrent_claims_lease_each_job_once(store: TrialStore) -> TrialResult {
    const JOBS: usize = 300;
    let queue = store.queue();
    store.create_many(&queue, JOBS, Due::NOW).await?;
    let clients = store.two_clients().await?;
    let claimers = (0..6).map(|n: usize| {
        let (client, queue) = (clients[n % 2].clone(), queue.clone());
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

async fn concurrent_claims_lease_an_expired_job_once(store: TrialStore) -> TrialResult {
    for _ in 0..5 {
        let queue = store.queue();
        store.lose_job(store.job(&queue, Due::NOW)).await?;
        let claimers = (0..4).map(|_| {
            let (client, queue) = (store.client(), queue.clone());
            tokio::spawn(async move { client.lease(&queue, 1).await })
        });
        let mut count = 0;
        for claimer in claimers.collect::<Vec<_>>() {
            count += claimer.await.map_err(Failure::new)??.len();
        }
        ensure_eq!(count, 1, "concurrent claims lease an expired job once");
    }
    Ok(())
}
