//! Cancels: after `Cancelled` the job never starts.

use dq_core::{
    Cancelled, DeadKind, DeadReason, Due, JobRef, OnConflict, Scheduled, Settled, Verdict,
};

use super::client::{Counts, SHORT_LEASE, ids};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, Limit, SOON, TrialStore, key};
use super::trial::topic;

topic! { "cancel":
    cancelled_job_never_starts [Cancel],
    due_job_is_cancelled [Cancel],
    job_is_cancelled_by_its_key [Cancel, Keys],
    running_job_is_not_cancelled [Cancel],
    retried_job_is_cancelled [Cancel],
    lapsed_job_is_cancelled [Cancel],
    dead_job_is_not_found [Cancel],
    unknown_job_is_not_found [Cancel],
    finished_job_is_not_found [Cancel],
    job_of_another_queue_is_not_found [Cancel],
    second_cancel_is_not_found [Cancel],
    answers_are_in_request_order [Cancel],
    id_is_free_after_cancel [Cancel],
    other_jobs_are_not_cancelled [Cancel],
    cancel_races_with_claim [Cancel],
    concurrent_cancels_succeed_once [Cancel],
}

async fn cancelled_job_never_starts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, SOON)).await?;
    ensure_eq!(store.cancel(&queue, receipt.id).await?, Cancelled::Cancelled, "a waiting job");
    store.expect_counts(&queue, Counts::NONE, "after cancel").await?;
    store.wait_until(receipt.due + SOON).await?;
    store.expect_empty_claim(&queue, "after `Cancelled` the job never starts").await
}

async fn due_job_is_cancelled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(
        store.cancel(&queue, id).await?,
        Cancelled::Cancelled,
        "a due job that is not leased"
    );
    store.expect_empty_claim(&queue, "after `Cancelled` the job never starts").await
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
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(
        store.cancel(&queue, id).await?,
        Cancelled::AlreadyRunning,
        "a leased job is not cancelled"
    );
    store.expect_counts(&queue, Counts::running(1), "after a cancel of a running job").await?;
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn retried_job_is_cancelled(store: TrialStore) -> TrialResult {
    for verdict in [
        Verdict::retry(LATER.into(), "a reason"),
        Verdict::Snooze(LATER.into()),
        Verdict::Release { started: true },
    ] {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, verdict.clone()).await?;
        let answer = store.cancel(&queue, id).await?;
        ensure_eq!(answer, Cancelled::Cancelled, "a waiting job, after {verdict:?}");
        store.expect_counts(&queue, Counts::NONE, "after cancel").await?;
    }
    Ok(())
}

async fn lapsed_job_is_cancelled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let lost = store.lease_one_for(&queue, SHORT_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    ensure_eq!(
        store.cancel(&queue, id).await?,
        Cancelled::Cancelled,
        "a lapsed job is waiting, not running"
    );
    let late = store.settle(lost.lease(), Verdict::retry(Due::NOW, "a reason")).await?;
    ensure_eq!(late, Settled::Stale, "a stale lease cannot bring it back");
    store.expect_empty_claim(&queue, "after `Cancelled` the job never starts").await
}

async fn dead_job_is_not_found(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    ensure_eq!(store.cancel(&queue, id).await?, Cancelled::NotFound, "a dead job");
    if store.capabilities().dead_letters {
        store.expect_counts(&queue, Counts::dead(1), "after a cancel of a dead job").await?;
    }
    Ok(())
}

async fn unknown_job_is_not_found(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let unknown = store.job(&queue, Due::NOW).id;
    ensure_eq!(
        store.cancel(&queue, unknown).await?,
        Cancelled::NotFound,
        "an unknown job of an unknown queue"
    );
    store.create(store.job(&queue, LATER)).await?;
    ensure_eq!(
        store.cancel(&queue, unknown).await?,
        Cancelled::NotFound,
        "an unknown job of a known queue"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after a cancel of an unknown job").await
}

async fn finished_job_is_not_found(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    ensure_eq!(store.cancel(&queue, id).await?, Cancelled::NotFound, "a finished job");
    Ok(())
}

async fn job_of_another_queue_is_not_found(store: TrialStore) -> TrialResult {
    let (here, there) = (store.queue(), store.queue());
    let id = store.create(store.job(&here, LATER)).await?.id;
    store.create(store.job(&there, LATER)).await?;
    ensure_eq!(store.cancel(&there, id).await?, Cancelled::NotFound, "a job of another queue");
    store.expect_counts(&here, Counts::scheduled(1), "after a cancel in another queue").await
}

async fn second_cancel_is_not_found(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, LATER)).await?.id;
    let job = JobRef::new(queue.clone(), id);
    ensure_eq!(
        store.backend().cancel(&[job.clone(), job.clone()]).await?,
        [Cancelled::Cancelled, Cancelled::NotFound],
        "a job is cancelled once within one call"
    );
    ensure_eq!(store.cancel(&queue, id).await?, Cancelled::NotFound, "it was removed already");
    Ok(())
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let running = store.create(store.job(&queue, Due::NOW)).await?.id;
    store.lease_one(&queue).await?;
    let waiting = store.create(store.job(&queue, LATER)).await?.id;
    let unknown = store.job(&queue, LATER).id;
    let jobs = [unknown, running, waiting, unknown].map(|id| JobRef::new(queue.clone(), id));
    ensure_eq!(
        store.backend().cancel(&jobs).await?,
        [Cancelled::NotFound, Cancelled::AlreadyRunning, Cancelled::Cancelled, Cancelled::NotFound],
        "answers are in request order"
    );
    ensure!(store.backend().cancel(&[]).await?.is_empty(), "an empty batch has no answers");
    Ok(())
}

async fn id_is_free_after_cancel(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Off);
    let job = store.job(&queue, LATER);
    store.create(job.clone()).await?;
    ensure_eq!(store.cancel(&queue, job.id).await?, Cancelled::Cancelled, "a waiting job");
    ensure_matches!(
        store.schedule(job).await?,
        Scheduled::Created(_),
        "without a history, the id of a cancelled job is free"
    );
    Ok(())
}

async fn other_jobs_are_not_cancelled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut created = Vec::new();
    for _ in 0..9 {
        created.push(store.create(store.job(&queue, now)).await?.id);
    }
    let cancelled: Vec<_> =
        created.iter().step_by(2).map(|id| JobRef::new(queue.clone(), *id)).collect();
    let answers = store.backend().cancel(&cancelled).await?;
    ensure!(
        answers.iter().all(|answer| *answer == Cancelled::Cancelled),
        "five waiting jobs are cancelled"
    );
    let mut left = ids(&store.lease(&queue, 10).await?);
    left.sort_unstable();
    let mut wanted: Vec<_> = created.into_iter().skip(1).step_by(2).collect();
    wanted.sort_unstable();
    ensure_eq!(left, wanted, "the other jobs are leased");
    Ok(())
}

async fn cancel_races_with_claim(store: TrialStore) -> TrialResult {
    for _ in 0..60 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let (caller, runner) = (store.client(), store.client());
        let (cancel_queue, claim_queue) = (queue.clone(), queue.clone());
        let cancel = tokio::spawn(async move { caller.cancel(&cancel_queue, id).await });
        let claim = tokio::spawn(async move { runner.lease(&claim_queue, 1).await });
        let answer = cancel.await.map_err(Failure::new)??;
        let leased = claim.await.map_err(Failure::new)??.len();
        match answer {
            Cancelled::Cancelled => {
                ensure_eq!(leased, 0, "after `Cancelled` the job is not leased")
            }
            Cancelled::AlreadyRunning => {
                ensure_eq!(leased, 1, "after `AlreadyRunning` the job is leased")
            }
            other => {
                return Err(Failure::new(format_args!(
                    "either the cancel or the claim succeeds, so the answer is not {other:?}"
                )));
            }
        }
        store.expect_empty_claim(&queue, "the job is cancelled or leased").await?;
    }
    Ok(())
}

async fn concurrent_cancels_succeed_once(store: TrialStore) -> TrialResult {
    for _ in 0..20 {
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
