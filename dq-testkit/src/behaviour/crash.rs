//! Process crashes: every effect of a call that returned `Ok` survives.

use dq_core::{
    Cancelled, Due, OnConflict, OnRunning, Operation, Rescheduled, Scheduled, Settled, Verdict,
};

use super::client::{Counts, SHORT_LEASE, dead, ids, next_step};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "crash":
    jobs_survive_unchanged [durable],
    every_effect_survives [durable],
    leases_survive [durable],
    keys_survive [durable, keys],
    order_survives [durable, fifo],
    job_that_became_due_while_closed_is_claimed_at_once [durable],
    repeated_call_after_a_crash_stores_once [durable],
    jobs_survive_a_close [durable],
}

async fn jobs_survive_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? - LATER;
    let new = store.full_job(&queue, due);
    store.create(new.clone()).await?;
    let store = store.crash().await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.id, job.due, job.key), (new.id, due, new.key), "id, due time and key");
    ensure_eq!((job.payload, job.headers), (new.payload, new.headers), "payload and headers");
    ensure_eq!(job.max_attempts, new.max_attempts, "limit of attempts");
    Ok(())
}

/// Makes each kind of call, and compares all that callers can see: states, counts, totals, due
/// times, payloads, errors, holders of leases, the history and the pause.
async fn every_effect_survives(store: TrialStore) -> TrialResult {
    let can = store.capabilities();
    let queue = store.queue();
    let mut verdicts = vec![
        Verdict::Done,
        Verdict::skip("a reason"),
        Verdict::retry(LATER.into(), "no network"),
        Verdict::Snooze(LATER.into()),
        dead("expected a number\nat line 1"),
        dead("card expired"),
    ];
    if can.again {
        verdicts.push(next_step(LATER, "second step"));
    }
    for verdict in verdicts {
        store.run_job(store.job(&queue, Due::NOW), verdict).await?;
    }
    if can.dead_letters {
        let jobs = &store.dead_ids(&queue).await?[..1];
        store.operate(Operation::Remove { queue: &queue, jobs }).await?;
    }
    if can.cancel {
        let id = store.create(store.job(&queue, LATER)).await?.id;
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
    }
    if can.reschedule {
        let id = store.create(store.job(&queue, LATER)).await?.id;
        let moved = store.reschedule(&queue, id, LATER * 2).await?;
        ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job");
    }
    let detached = if can.detach {
        let other = store.queue();
        let leased = store.start_job(store.keyed(&other, Due::NOW, "k", OnConflict::Keep)).await?;
        let new = store.keyed(&other, LATER, "k", OnConflict::Keep);
        store.create(new.on_running(OnRunning::Detach)).await?;
        Some(leased)
    } else {
        None
    };
    store.lose_job(store.job(&queue, Due::NOW)).await?;
    let running = store.lease_one_as("a worker", &queue, LATER).await?;
    if can.pause {
        store.operate(Operation::Pause { queue: &queue }).await?;
    }
    let before = store.snapshot(&queue).await?;

    let store = store.crash().await?;
    ensure_eq!(store.snapshot(&queue).await?, before, "all that callers can see after a crash");
    store.settle_accepted(&running, Verdict::Release { started: true }).await?;
    if can.pause {
        store.expect_empty_claim(&queue, "the queue is paused").await?;
        store.operate(Operation::Resume { queue: &queue }).await?;
    }
    let store = store.crash().await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.id, job.deliveries, job.losses), (running.job.id, 3, 1), "the released job");
    if let Some(leased) = detached {
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
        let job = store.lease_one(&leased.job.queue).await?.job;
        ensure_eq!((job.id, job.key), (leased.job.id, None), "the job stays detached");
    }
    Ok(())
}

async fn leases_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, SHORT_LEASE).await?;
    let store = store.crash().await?;
    // The crash may take longer than the lease.
    if store.now().await? < lost.leased_until {
        let claimed = store.lease(&queue, 1).await?;
        let expired = store.now().await? >= lost.leased_until;
        ensure!(claimed.is_empty() || expired, "a lease survives the crash of its holder");
        if !claimed.is_empty() {
            // It expired just before this claim, which leased the job for much longer.
            return Ok(());
        }
    }
    store.wait_until(lost.leased_until).await?;
    let again = store.lease_lost_one(&store, &queue).await?;
    ensure_eq!(
        (again.job.deliveries, again.job.losses, again.job.attempts),
        (2, 1, 0),
        "a crash before the settlement counts a delivery and a loss, not a failed attempt"
    );
    ensure_eq!(
        store.settle(lost.lease(), Verdict::Done).await?,
        Settled::LostLease,
        "the expired lease from before the crash is stale"
    );
    store.expect_empty_claim(&queue, "it is redelivered once").await
}

async fn keys_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let store = store.crash().await?;
    let again = store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(again, Scheduled::Kept(first), "the key is live");
    let new = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    let replaced = store.schedule(new.clone()).await?;
    ensure_matches!(replaced, Scheduled::Replaced(_), "the job can be replaced");
    let store = store.crash().await?;
    ensure_eq!(store.lease_one(&queue).await?.job.id, new.id, "the new job runs");
    store.expect_counts(&queue, Counts::running(1), "the old job never starts").await
}

async fn order_survives(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut wanted = Vec::new();
    let mut store = store;
    for _ in 0..2 {
        let mut jobs: Vec<_> = (0..4).map(|_| store.job(&queue, now)).collect();
        // Later ids come first: the insertion order counts.
        jobs.reverse();
        wanted.extend(jobs.iter().map(|job| job.id));
        store.schedule_all(jobs).await?;
        store = store.crash().await?;
    }
    let found = ids(&store.lease(&queue, 100).await?);
    ensure_eq!(found, wanted, "equal due times are claimed in insertion order, across crashes too");
    Ok(())
}

async fn job_that_became_due_while_closed_is_claimed_at_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, SOON)).await?;
    store.backend().close().await?;
    store.wait_until_while_closed(receipt.due).await;
    let store = store.crash().await?;
    // A server's clock may be behind this process's clock.
    store.wait_until(receipt.due).await?;
    ensure_eq!(
        store.lease_one(&queue).await?.job.id,
        receipt.id,
        "a job that became due while the store was closed is claimed at once"
    );
    Ok(())
}

async fn repeated_call_after_a_crash_stores_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let jobs: Vec<_> = (0..10).map(|_| store.job(&queue, LATER)).collect();
    store.schedule_all(jobs.clone()).await?;
    let store = store.crash().await?;
    // As if the first answer was lost.
    let answers = store.schedule_all(jobs).await?;
    ensure!(
        answers.iter().all(|answer| matches!(answer, Scheduled::Created(_))),
        "a repeated call with the same ids changes nothing: {answers:?}"
    );
    store.expect_counts(&queue, Counts::scheduled(10), "after a repeated call").await
}

async fn jobs_survive_a_close(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create_many(&queue, 10, Due::NOW).await?;
    let running = store.lease(&queue, 3).await?;
    store.backend().close().await?;
    // Only opens the store again: nothing is left to crash.
    let store = store.crash().await?;
    store.expect_counts(&queue, Counts { ready: 7, ..Counts::running(3) }, "after a close").await?;
    store.settle_all_done(&running).await
}
