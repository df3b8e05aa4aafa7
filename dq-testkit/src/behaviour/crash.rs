//! Process crashes: every effect of a call that returned `Ok` survives.

use dq_core::{
    DeadKind, DeadReason, Due, Headers, JobState, OnConflict, Operation, Scheduled, Settled,
    Verdict,
};

use super::client::{Counts, SHORT_LEASE, ids};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;

topic! { "crash":
    jobs_survive_unchanged [Durable],
    states_survive [Durable],
    leases_survive [Durable],
    settlements_survive [Durable],
    backoff_survives [Durable],
    keys_survive [Durable, Keys],
    cancel_survives [Durable, Cancel],
    dead_reasons_survive [Durable, Browse, DeadLetters],
    pause_survives [Durable, Pause],
    totals_survive [Durable, Totals],
    order_survives [Durable, Fifo],
    job_that_became_due_while_closed_is_claimed_at_once [Durable],
    repeated_call_after_a_crash_stores_once [Durable],
    jobs_survive_a_close [Durable],
}

async fn jobs_survive_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let key = store.capabilities().keys.then(|| super::store::key("k"));
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "application/json")]);
    let due = store.now().await? - LATER;
    let mut new = store.job(&queue, due).headers(headers).max_attempts(3);
    new.key = key;
    store.create(new.clone()).await?;
    let store = store.crash().await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.id, job.due, job.key), (new.id, due, new.key), "id, due time and key");
    ensure_eq!((job.payload, job.headers), (new.payload, new.headers), "payload and headers");
    ensure_eq!(job.max_attempts, Some(3), "limit of attempts");
    Ok(())
}

async fn states_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..6).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    for leased in store.lease(&queue, 1).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    store.lease(&queue, 2).await?;
    store.schedule_all((0..4).map(|_| store.job(&queue, LATER)).collect()).await?;
    let before = store.stats(&queue).await?;
    let store = store.crash().await?;
    ensure_eq!(store.stats(&queue).await?, before, "each job keeps its state");
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
        let lapsed = store.now().await? >= lost.leased_until;
        ensure!(claimed.is_empty() || lapsed, "a lease survives the crash of its holder");
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
        Settled::Stale,
        "the lapsed lease from before the crash is stale"
    );
    store.expect_empty_claim(&queue, "it is redelivered once").await
}

async fn settlements_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..3).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let claimed = store.lease(&queue, 3).await?;
    for (leased, verdict) in claimed.iter().zip([
        Verdict::Done,
        Verdict::skip("a reason"),
        Verdict::Snooze(LATER.into()),
    ]) {
        store.settle_accepted(leased, verdict).await?;
    }
    let store = store.crash().await?;
    store
        .expect_counts(&queue, Counts::scheduled(1), "after a crash that followed settlements")
        .await?;
    store.expect_empty_claim(&queue, "all jobs are settled").await
}

async fn backoff_survives(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    for _ in 0..2 {
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    }
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::retry(SOON.into(), "a reason")).await?;
    let due = store.stats(&queue).await?.next_due;
    let store = store.crash().await?;
    ensure_eq!(store.stats(&queue).await?.next_due, due, "the due time of the retry survives");
    store.wait_until(due.unwrap_or_default()).await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.id, job.attempts, job.deliveries), (id, 3, 4), "the counts survive");
    Ok(())
}

async fn keys_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let store = store.crash().await?;
    let again = store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(again, Scheduled::Kept(first), "the key is live");
    ensure_matches!(
        store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Replace)).await?,
        Scheduled::Replaced(_),
        "the job can be replaced"
    );
    Ok(())
}

async fn cancel_survives(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, SOON)).await?;
    let answer = store.cancel(&queue, receipt.id).await?;
    ensure_eq!(answer, dq_core::Cancelled::Cancelled, "a waiting job");
    let store = store.crash().await?;
    store.wait_until(receipt.due).await?;
    store.expect_empty_claim(&queue, "the job was cancelled before the crash").await
}

async fn dead_reasons_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    store.create(new.clone()).await?;
    let leased = store.lease_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Undecodable, "expected a number\nat line 1");
    store.settle_accepted(&leased, Verdict::Dead { reason: reason.clone(), failed: true }).await?;
    let before = store.get_existing(&queue, new.id).await?;
    let store = store.crash().await?;
    let after = store.get_existing(&queue, new.id).await?;
    ensure_eq!(after, before, "a dead job survives unchanged");
    ensure_eq!(after.state, JobState::Dead, "the job is dead");
    ensure_eq!(after.dead.map(|(why, _)| why), Some(reason), "the reason survives");
    Ok(())
}

async fn pause_survives(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    store.operate(Operation::Pause { queue: &queue }).await?;
    let store = store.crash().await?;
    ensure!(store.stats(&queue).await?.paused, "a pause survives");
    store.expect_empty_claim(&queue, "the queue is paused").await?;
    store.operate(Operation::Resume { queue: &queue }).await?;
    let store = store.crash().await?;
    store.lease_one(&queue).await?;
    Ok(())
}

async fn totals_survive(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..5).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    for (leased, verdict) in
        store.lease(&queue, 2).await?.iter().zip([Verdict::Done, Verdict::skip("a reason")])
    {
        store.settle_accepted(leased, verdict).await?;
    }
    let before = store.stats(&queue).await?.totals;
    let store = store.crash().await?;
    ensure_eq!(store.stats(&queue).await?.totals, before, "totals survive");
    Ok(())
}

async fn order_survives(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut wanted = Vec::new();
    let mut store = store;
    for _ in 0..3 {
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
    store.schedule_all((0..10).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let running = store.lease(&queue, 3).await?;
    store.backend().close().await?;
    // Only opens the store again: nothing is left to crash.
    let store = store.crash().await?;
    store.expect_counts(&queue, Counts { ready: 7, ..Counts::running(3) }, "after a close").await?;
    store.settle_all_done(&running).await
}
