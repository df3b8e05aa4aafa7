//! Two handles, as of two processes: one store.

use std::collections::HashSet;

use dq_core::{Cancelled, Due, OnConflict, Operation, Rescheduled, Scheduled, Settled, Verdict};

use super::failure::{Failure, Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE};
use super::stand::{LATER, Stand};
use super::trial::topic;

topic! { "shared":
    what_one_stores_the_other_sees [Shared],
    what_one_leases_the_other_does_not_get [Shared],
    lease_may_be_settled_by_either [Shared],
    lapse_is_seen_by_both [Shared],
    cancel_binds_both [Shared, Cancel],
    move_binds_both [Shared, Reschedule],
    key_is_one_for_both [Shared, Keys],
    pause_binds_both [Shared, Pause],
    handles_race_and_each_job_is_leased_once [Shared],
    handles_race_for_one_key [Shared, Keys],
    cancel_races_with_claim [Shared, Cancel],
    end_of_one_is_not_the_end_of_the_other [Shared],
}

async fn what_one_stores_the_other_sees(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    for (from, to) in [(&*stand, &other), (&other, &*stand)] {
        let job = stand.job(&queue, Due::NOW);
        from.create(job.clone()).await?;
        to.expect(&queue, Counts::ready(1), "as soon as the other handle has its answer").await?;
        let taken = to.take_one(&queue).await?;
        ensure_eq!(taken.job.payload, job.payload, "any handle gets any due job");
        to.accept(&taken, Verdict::Done).await?;
        from.expect(&queue, Counts::NONE, "after the other handle settled it").await?;
    }
    Ok(())
}

async fn what_one_leases_the_other_does_not_get(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    stand.create(stand.job(&queue, Due::NOW)).await?;
    stand.take_one(&queue).await?;
    other.take_none(&queue, "the other handle leased it").await?;
    other.expect(&queue, Counts::running(1), "seen from the other handle").await
}

async fn lease_may_be_settled_by_either(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    // The token is the right; which connection carries it does not matter.
    other.accept(&taken, Verdict::Done).await?;
    let late = stand.settle(taken.lease(), Verdict::Done).await?;
    ensure_eq!(late, Settled::Stale, "a lease ends once, whoever ends it");
    Ok(())
}

async fn lapse_is_seen_by_both(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(lost.leased_until).await?;
    let taken = other.take_one(&queue).await?;
    ensure!(taken.token > lost.token, "tokens grow from handle to handle");
    ensure_eq!((taken.job.deliveries, taken.job.losses), (2, 1), "the lapse is counted once");
    let late = stand.settle(lost.lease(), Verdict::Done).await?;
    ensure_eq!(late, Settled::Stale, "the first holder is told");
    other.accept(&taken, Verdict::Done).await
}

async fn cancel_binds_both(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(other.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
    stand.take_none(&queue, "the other handle cancelled it").await
}

async fn move_binds_both(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let moved = other.reschedule(&queue, id, LATER).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job");
    stand.take_none(&queue, "the other handle put it off").await?;
    let moved = other.reschedule(&queue, id, Due::NOW).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job");
    stand.take_one(&queue).await?;
    Ok(())
}

async fn key_is_one_for_both(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    let first = stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let again = other.put(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(again, Scheduled::Kept(first), "a key is live in the store, not in a handle");
    Ok(())
}

async fn pause_binds_both(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    stand.create(stand.job(&queue, Due::NOW)).await?;
    other.operate(Operation::Pause { queue: &queue }).await?;
    stand.take_none(&queue, "the queue is paused in every process").await?;
    other.operate(Operation::Resume { queue: &queue }).await?;
    stand.take_one(&queue).await?;
    Ok(())
}

async fn handles_race_and_each_job_is_leased_once(stand: Stand) -> Passed {
    const JOBS: usize = 200;
    let queue = stand.queue();
    let handles = [stand.handle(), stand.second().await?, stand.second().await?];
    stand.put_all((0..JOBS).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let movers = handles.map(|handle| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let taken = handle.take(&queue, 7).await?;
                if taken.is_empty() {
                    return Passed::Ok(mine);
                }
                handle.finish_all(&taken).await?;
                mine.extend(super::handle::ids(&taken));
            }
        })
    });
    let mut seen = HashSet::new();
    for mover in movers {
        for id in mover.await.map_err(Failure::new)?? {
            ensure!(seen.insert(id), "job {id} was leased by two handles");
        }
    }
    ensure_eq!(seen.len(), JOBS, "handles that race leave nothing behind");
    stand.expect(&queue, Counts::NONE, "after all were settled").await
}

async fn handles_race_for_one_key(stand: Stand) -> Passed {
    let handles = [stand.handle(), stand.second().await?];
    for _ in 0..10 {
        let queue = stand.queue();
        let calls = handles.each_ref().map(|handle| {
            let handle = handle.clone();
            let job = stand.keyed(&queue, LATER, "k", OnConflict::Keep);
            tokio::spawn(async move { handle.put(job).await })
        });
        let mut created = 0;
        for call in calls {
            created += usize::from(call.await.map_err(Failure::new)??.is_stored());
        }
        ensure_eq!(created, 1, "of two jobs with one key at once, one is stored");
        stand.expect(&queue, Counts::scheduled(1), "after a race for one key").await?;
    }
    Ok(())
}

async fn cancel_races_with_claim(stand: Stand) -> Passed {
    let other = stand.second().await?;
    for _ in 0..20 {
        let queue = stand.queue();
        let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
        let (caller, runner) = (other.clone(), stand.handle());
        let (there, here) = (queue.clone(), queue.clone());
        let cancel = tokio::spawn(async move { caller.cancel(&there, id).await });
        let claim = tokio::spawn(async move { runner.take(&here, 1).await });
        let answer = cancel.await.map_err(Failure::new)??;
        let leased = claim.await.map_err(Failure::new)??.len();
        let wanted = if leased == 0 { Cancelled::Cancelled } else { Cancelled::AlreadyRunning };
        ensure_eq!(answer, wanted, "exactly one of both wins, and says so");
    }
    Ok(())
}

async fn end_of_one_is_not_the_end_of_the_other(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.second().await?);
    let third = stand.second().await?;
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = other.take_one(&queue).await?;
    other.backend().close().await?;
    drop(third);
    stand.expect(&queue, Counts::running(1), "after another handle was closed").await?;
    stand.accept(&taken, Verdict::Done).await?;
    stand.create(stand.job(&queue, Due::NOW)).await?;
    stand.take_one(&queue).await?;
    Ok(())
}
