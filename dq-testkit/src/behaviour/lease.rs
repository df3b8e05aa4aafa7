//! Leases: one holder at a time, a new delivery when one is lost, and old tokens worth nothing.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::{
    DeadKind, DeadReason, Due, FencingToken, Lease, Operation, Renewal, Renewed, Settled, Verdict,
};

use super::failure::{Failure, Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, LEASE, SHORT_LEASE, want};
use super::stand::{Held, LATER, SOON, Stand};
use super::trial::topic;

topic! { "lease":
    lapse_brings_the_job_back,
    lapse_is_exact_to_the_millisecond [VirtualTime],
    lapse_counts_every_time,
    lapsed_job_keeps_its_place,
    lapse_is_seen_without_a_claim [Browse],
    lapsed_lease_settles_nothing,
    stale_token_settles_nothing,
    stale_token_renews_nothing,
    made_up_token_is_worthless,
    lease_ends_once,
    renewed_lease_is_not_stolen,
    renewal_counts_from_now,
    renewal_after_the_lapse_is_lost,
    renewals_are_answered_one_by_one,
    tokens_grow,
    tokens_grow_through_replay [DeadLetters],
    tokens_grow_over_a_crash [Durable],
    movers_race_and_each_job_is_leased_once,
    lapsed_job_is_raced_for_and_leased_once,
}

/// Every way to end a lease.
fn verdicts() -> Vec<Verdict> {
    let reason = DeadReason::new(DeadKind::Rejected, "by a holder of the past");
    vec![
        Verdict::Done,
        Verdict::Skip,
        Verdict::Retry(Due::NOW),
        Verdict::Snooze(LATER.into()),
        Verdict::Dead { reason: reason.clone(), failed: true },
        Verdict::Dead { reason, failed: false },
        Verdict::Release { started: true },
        Verdict::Release { started: false },
    ]
}

async fn lapse_brings_the_job_back(stand: Stand) -> Passed {
    let Held { queue, taken: first, .. } =
        stand.hold(|stand, held| Box::pin(stand.take_none(&held.queue, "the lease lasts"))).await?;
    stand.reach(first.leased_until).await?;
    stand.expect(&queue, Counts::ready(1), "when the lease has ended").await?;
    let second = stand.take_one(&queue).await?.job;
    let first = first.job;
    ensure_eq!((second.id, second.payload), (first.id, first.payload), "the same job comes again");
    ensure_eq!(second.due, first.due, "a lapse does not move the due time");
    ensure_eq!(
        (second.deliveries, second.losses, second.attempts),
        (2, 1, 0),
        "a lost lease is a delivery and a loss, not a failed attempt"
    );
    stand.take_none(&queue, "it is redelivered once").await
}

async fn lapse_is_exact_to_the_millisecond(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let first = stand.take_one_for(&queue, Duration::from_millis(777)).await?;
    stand.reach(first.leased_until - Duration::from_millis(1)).await?;
    stand.take_none(&queue, "the lease lasts one more millisecond").await?;
    stand.reach(first.leased_until).await?;
    stand.take_one(&queue).await?;
    Ok(())
}

async fn lapse_counts_every_time(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    for round in 1..=4 {
        let taken = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
        let job = &taken.job;
        ensure_eq!(
            (job.deliveries, job.losses, job.attempts),
            (round, round - 1, 0),
            "every lapse counts as one delivery and one loss"
        );
        stand.reach(taken.leased_until).await?;
    }
    Ok(())
}

async fn lapsed_job_keeps_its_place(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let oldest = stand.create(stand.job(&queue, now - LATER)).await?.id;
    let lost = stand.take_one_for(&queue, SHORT_LEASE).await?;
    let newer = stand.create(stand.job(&queue, now - SOON)).await?.id;
    stand.reach(lost.leased_until).await?;
    let taken = super::handle::ids(&stand.take(&queue, 10).await?);
    ensure_eq!(taken, [oldest, newer], "a lapsed job is due at its old time");
    Ok(())
}

async fn lapse_is_seen_without_a_claim(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(taken.leased_until).await?;
    let view = stand.view(&queue, id).await?;
    ensure_eq!(view.state, dq_core::JobState::Ready, "every call sees the lapse");
    ensure_eq!(
        (view.job.deliveries, view.job.losses, view.leased_until),
        (1, 1, None),
        "one lease was given out, and it was lost"
    );
    for (state, count) in [(dq_core::JobState::Ready, 1), (dq_core::JobState::Running, 0)] {
        ensure_eq!(stand.list(&queue, state, 10).await?.len(), count, "listed once as {state}");
    }
    Ok(())
}

async fn lapsed_lease_settles_nothing(stand: Stand) -> Passed {
    // Nobody has taken the job since: the lapse alone makes the lease worthless.
    for verdict in verdicts() {
        let queue = stand.queue();
        stand.create(stand.job(&queue, Due::NOW)).await?;
        let taken = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
        stand.reach(taken.leased_until).await?;
        ensure_eq!(
            stand.settle(taken.lease(), verdict.clone()).await?,
            Settled::Stale,
            "a lease that has ended settles nothing: {verdict:?}"
        );
        stand.expect(&queue, Counts::ready(1), "after a settlement that came too late").await?;
        let job = stand.take_one(&queue).await?.job;
        ensure_eq!((job.attempts, job.deliveries, job.losses), (0, 2, 1), "nothing was changed");
    }
    Ok(())
}

async fn stale_token_settles_nothing(stand: Stand) -> Passed {
    for verdict in verdicts() {
        let queue = stand.queue();
        stand.create(stand.job(&queue, Due::NOW)).await?;
        let old = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
        stand.reach(old.leased_until).await?;
        let new = stand.take_one(&queue).await?;
        ensure_eq!(
            stand.settle(old.lease(), verdict.clone()).await?,
            Settled::Stale,
            "a stale token settles nothing: {verdict:?}"
        );
        stand.expect(&queue, Counts::running(1), "after a stale settlement").await?;
        stand.accept(&new, Verdict::Done).await?;
        stand.expect(&queue, Counts::NONE, "after the holder's own").await?;
    }
    Ok(())
}

async fn stale_token_renews_nothing(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let old = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(old.leased_until).await?;
    let new = stand.take_one_for(&queue, SHORT_LEASE).await?;
    ensure_eq!(
        stand.renew(old.lease(), LEASE).await?,
        Renewed::Lost,
        "the holder of a stale token is told"
    );
    stand.reach(new.leased_until).await?;
    stand.expect(&queue, Counts::ready(1), "a stale renewal kept nothing").await
}

async fn made_up_token_is_worthless(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    let lease = taken.lease();
    let nobody = stand.job(&queue, Due::NOW).id;
    for forged in [
        Lease { token: FencingToken(lease.token.0 + 1), ..lease.clone() },
        Lease { token: FencingToken(lease.token.0.wrapping_sub(1)), ..lease.clone() },
        Lease { token: FencingToken(0), ..lease.clone() },
        Lease { token: FencingToken(u64::MAX), ..lease.clone() },
        Lease { job: nobody, ..lease.clone() },
    ] {
        let settled = stand.settle(forged.clone(), Verdict::Done).await?;
        ensure_eq!(settled, Settled::Stale, "only the token given out settles");
        let renewed = stand.renew(forged, LEASE).await?;
        ensure_eq!(renewed, Renewed::Lost, "only the token given out renews");
    }
    stand.expect(&queue, Counts::running(1), "after forged tokens").await?;
    stand.accept(&taken, Verdict::Done).await
}

async fn lease_ends_once(stand: Stand) -> Passed {
    for first in verdicts() {
        let queue = stand.queue();
        stand.create(stand.job(&queue, Due::NOW)).await?;
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, first.clone()).await?;
        for second in verdicts() {
            ensure_eq!(
                stand.settle(taken.lease(), second.clone()).await?,
                Settled::Stale,
                "a lease that ended with {first:?} cannot end again with {second:?}"
            );
        }
        ensure_eq!(
            stand.renew(taken.lease(), LEASE).await?,
            Renewed::Lost,
            "a lease that has ended cannot be renewed"
        );
    }
    Ok(())
}

async fn renewed_lease_is_not_stolen(stand: Stand) -> Passed {
    stand.hold(|stand, held| Box::pin(renew_and_settle(stand, held))).await?;
    Ok(())
}

async fn renew_and_settle(stand: &Stand, held: &mut Held) -> Passed {
    let first_end = held.taken.leased_until;
    for _ in 0..4 {
        stand.pass(held.lease_for / 3).await?;
        let until = held.taken.leased_until;
        match stand.renew(held.taken.lease(), held.lease_for).await? {
            Renewed::Until(later) if later > until => held.taken.leased_until = later,
            other => {
                return Err(Failure::new(format_args!(
                    "a lease in hand is held longer than until {until} when renewed: {other:?}"
                )));
            }
        }
        stand.take_none(&held.queue, "slow is not dead: the lease was renewed").await?;
    }
    ensure!(stand.now().await? >= first_end, "the first lease would have ended by now");
    stand.accept(&held.taken, Verdict::Done).await
}

async fn renewal_counts_from_now(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one_for(&queue, LEASE).await?;
    let before = stand.now().await?;
    let renewed = stand.renew(taken.lease(), LEASE * 2).await?;
    let after = stand.now().await?;
    ensure_matches!(
        renewed,
        Renewed::Until(until) if (before + LEASE * 2..=after + LEASE * 2).contains(until),
        "a renewal lasts as long as asked from the store's now"
    );
    let claimed = stand.claim(&[want(&queue, 1)]).await?;
    ensure_eq!(
        claimed.next_due.map(Renewed::Until),
        Some(renewed),
        "the lease ends when the renewal said"
    );
    Ok(())
}

async fn renewal_after_the_lapse_is_lost(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(taken.leased_until).await?;
    ensure_eq!(
        stand.renew(taken.lease(), LEASE).await?,
        Renewed::Lost,
        "a lease that has ended is lost, even if nobody took the job since"
    );
    stand.expect(&queue, Counts::ready(1), "after a renewal that came too late").await
}

async fn renewals_are_answered_one_by_one(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..3).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let taken = stand.take(&queue, 3).await?;
    let gone = taken.get(1).ok_or_else(|| Failure::new("three jobs are due"))?;
    stand.accept(gone, Verdict::Done).await?;
    let renewals: Vec<_> =
        taken.iter().map(|l| Renewal { lease: l.lease(), lease_for: LEASE }).collect();
    ensure_matches!(
        stand.backend().renew(&renewals).await?[..],
        [Renewed::Until(_), Renewed::Lost, Renewed::Until(_)],
        "each renewal has its own answer, in the order asked"
    );
    let none = stand.backend().renew(&[]).await?;
    ensure!(none.is_empty(), "no renewals, no answers");
    Ok(())
}

async fn tokens_grow(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let mut last = stand.take_one(&queue).await?;
    for verdict in [
        Verdict::Retry(Due::NOW),
        Verdict::Snooze(Due::NOW),
        Verdict::Release { started: true },
        Verdict::Release { started: false },
        Verdict::Retry(Due::NOW),
    ] {
        stand.accept(&last, verdict.clone()).await?;
        let next = stand.take_one(&queue).await?;
        ensure!(
            next.token > last.token,
            "tokens grow with each lease, after {verdict:?} too: {} is not above {}",
            next.token,
            last.token
        );
        last = next;
    }
    stand.accept(&last, Verdict::Retry(Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
    stand.reach(lost.leased_until).await?;
    let next = stand.take_one(&queue).await?;
    ensure!(next.token > lost.token, "tokens grow after a lapse too");
    Ok(())
}

async fn tokens_grow_through_replay(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let first = stand.take_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    stand.accept(&first, Verdict::Dead { reason, failed: true }).await?;
    stand.operate(Operation::Replay { queue: &queue, jobs: None, due: Due::NOW }).await?;
    let second = stand.take_one(&queue).await?;
    ensure!(second.token > first.token, "tokens grow after death and replay too");
    Ok(())
}

async fn tokens_grow_over_a_crash(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let first = stand.take_one_for(&queue, SHORT_LEASE).await?;
    let stand = stand.crash().await?;
    stand.reach(first.leased_until).await?;
    let second = stand.take_one(&queue).await?;
    ensure!(second.token > first.token, "tokens grow over a crash");
    let stale = stand.settle(first.lease(), Verdict::Done).await?;
    ensure_eq!(stale, Settled::Stale, "a lease from before the crash that ended is stale");
    Ok(())
}

async fn movers_race_and_each_job_is_leased_once(stand: Stand) -> Passed {
    const JOBS: usize = 300;
    let queue = stand.queue();
    stand.put_all((0..JOBS).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let movers = (0..6).map(|_| {
        let (handle, queue) = (stand.handle(), queue.clone());
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let taken = handle.take(&queue, 7).await?;
                if taken.is_empty() {
                    return Passed::Ok(mine);
                }
                mine.extend(taken);
            }
        })
    });
    let mut leases = HashMap::new();
    for mover in movers.collect::<Vec<_>>() {
        for leased in mover.await.map_err(Failure::new)?? {
            let double = leases.insert(leased.job.id, leased.token);
            ensure!(double.is_none(), "job {} has two live leases", leased.job.id);
        }
    }
    ensure_eq!(leases.len(), JOBS, "movers that race leave nothing behind");
    Ok(())
}

async fn lapsed_job_is_raced_for_and_leased_once(stand: Stand) -> Passed {
    for _ in 0..10 {
        let queue = stand.queue();
        stand.create(stand.job(&queue, Due::NOW)).await?;
        let lost = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
        stand.reach(lost.leased_until).await?;
        let movers = (0..4).map(|_| {
            let (handle, queue) = (stand.handle(), queue.clone());
            tokio::spawn(async move { handle.take(&queue, 1).await })
        });
        let mut count = 0;
        for mover in movers.collect::<Vec<_>>() {
            count += mover.await.map_err(Failure::new)??.len();
        }
        ensure_eq!(count, 1, "a lapsed job gets one new lease, however many ask");
    }
    Ok(())
}
