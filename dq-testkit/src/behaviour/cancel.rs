//! Cancels: after `Cancelled` the job never starts.

use dq_core::{Cancelled, Due, JobRef, OnConflict, Verdict};

use super::client::{Counts, dead, race_with_claim};
use super::failure::{Failure, TrialResult, ensure_eq};
use super::store::{LATER, SOON, TrialStore, key};
use super::trial::topic;

topic! { "cancel":
    cancelled_job_never_starts [cancel],
    job_is_cancelled_by_its_key [cancel, keys],
    running_job_is_not_cancelled [cancel],
    unknown_and_ended_jobs_are_not_found [cancel],
    answers_are_in_request_order [cancel],
    cancel_races_with_claim [cancel],
    concurrent_cancels_succeed_once [cancel],
}

async fn cancelled_job_never_starts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let soon = store.create(store.job(&queue, SOON)).await?;
    let mut jobs = vec![soon.id, store.create(store.job(&queue, LATER)).await?.id];
    let waits = [
        Verdict::retry(LATER.into(), "a reason"),
        Verdict::Snooze(LATER.into()),
        Verdict::Release { started: true },
    ];
    for verdict in waits {
        let other = store.queue();
        let id = store.run_job(store.job(&other, Due::NOW), verdict.clone()).await?.id;
        let answer = store.cancel(&other, id).await?;
        ensure_eq!(answer, Cancelled::Cancelled, "a job that waits after {verdict:?}");
        store.expect_counts(&other, Counts::NONE, "after cancel").await?;
    }
    jobs.push(store.create(store.job(&queue, Due::NOW)).await?.id);
    let kept = store.create(store.job(&queue, LATER)).await?.due;
    for id in jobs {
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
    }
    store.expect_counts(&queue, Counts::scheduled(1), "after cancel").await?;
    store.wait_until(soon.due + SOON).await?;
    store.expect_empty_claim(&queue, "after `Cancelled` the job never starts").await?;
    ensure_eq!(store.stats(&queue).await?.next_due, Some(kept), "the other job is left");
    Ok(())
}

async fn job_is_cancelled_by_its_key(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.keyed(&queue, LATER, "order-1001", OnConflict::Keep)).await?;
    store.create(store.keyed(&queue, LATER, "order-1002", OnConflict::Keep)).await?;
    ensure_eq!(
        store.cancel(&queue, key("order-1001")).await?,
        Cancelled::Cancelled,
        "a job is cancelled by its key"
    );
    ensure_eq!(
        store.cancel(&queue, key("order-1001")).await?,
        Cancelled::NotFound,
        "the key is free"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "the job with the other key is kept").await
}

async fn running_job_is_not_cancelled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let leased = store.start(&queue).await?;
    let answer = store.cancel(&queue, leased.job.id).await?;
    ensure_eq!(answer, Cancelled::AlreadyRunning, "a leased job is not cancelled");
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn unknown_and_ended_jobs_are_not_found(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let unknown = store.job(&queue, Due::NOW).id;
    ensure_eq!(store.cancel(&queue, unknown).await?, Cancelled::NotFound, "an unknown queue");
    let done = store.run_job(store.job(&queue, Due::NOW), Verdict::Done).await?.id;
    let dead = store.run_job(store.job(&queue, Due::NOW), dead("no")).await?.id;
    store.create(store.job(&queue, LATER)).await?;
    let elsewhere = store.create(store.job(&other, LATER)).await?.id;
    for (id, what) in [
        (unknown, "an unknown job"),
        (done, "a job that is done"),
        (dead, "a dead job"),
        (elsewhere, "a job of another queue"),
    ] {
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::NotFound, "{what}");
    }
    let stats = store.stats(&queue).await?;
    ensure_eq!(stats.live(), 1, "the waiting job is left");
    if store.capabilities().dead_letters {
        ensure_eq!(stats.dead, 1, "the dead job is left");
    }
    store.expect_counts(&other, Counts::scheduled(1), "after a cancel in another queue").await
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let running = store.start(&queue).await?.job.id;
    let waiting = store.create(store.job(&queue, LATER)).await?.id;
    let unknown = store.job(&queue, LATER).id;
    let jobs = [unknown, running, waiting, waiting].map(|id| JobRef::new(queue.clone(), id));
    ensure_eq!(
        store.backend().cancel(&jobs).await?,
        [Cancelled::NotFound, Cancelled::AlreadyRunning, Cancelled::Cancelled, Cancelled::NotFound],
        "answers are in request order, and a job is cancelled once within one call"
    );
    Ok(())
}

async fn cancel_races_with_claim(store: TrialStore) -> TrialResult {
    let [first, second] = store.two_clients().await?;
    for round in 0..20 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let caller = if round % 2 == 0 { first.clone() } else { second.clone() };
        let in_queue = queue.clone();
        let call = async move { caller.cancel(&in_queue, id).await };
        let (answer, leased) = race_with_claim(&first, &queue, call).await?;
        let cancelled = leased.is_empty();
        let wanted = if cancelled { Cancelled::Cancelled } else { Cancelled::AlreadyRunning };
        ensure_eq!(answer, wanted, "either the cancel or the claim succeeds");
        store.expect_empty_claim(&queue, "the job is cancelled or leased").await?;
    }
    Ok(())
}

async fn concurrent_cancels_succeed_once(store: TrialStore) -> TrialResult {
    for _ in 0..5 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, LATER)).await?.id;
        let callers = (0..4).map(|_| {
            let (client, queue) = (store.client(), queue.clone());
            tokio::spawn(async move { client.cancel(&queue, id).await })
        });
        let mut cancelled = 0;
        for caller in callers.collect::<Vec<_>>() {
            cancelled += usize::from(caller.await.map_err(Failure::new)?? == Cancelled::Cancelled);
        }
        ensure_eq!(cancelled, 1, "one of several concurrent cancels succeeds");
    }
    Ok(())
}
