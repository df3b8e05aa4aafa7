//! Detaching: a running job gives up its key to a new one.

use bytes::Bytes;
use dq_core::{
    Cancelled, Due, LeasedJob, NewJob, OnConflict, OnRunning, QueueName, Scheduled, Timestamp,
    Verdict,
};

use super::client::{Counts, dead};
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore, key};
use super::trial::topic;

topic! { "detach":
    both_jobs_run [detach],
    running_job_has_no_key_any_more [detach, browse],
    every_conflict_policy_detaches [detach],
    waiting_job_is_not_detached [detach],
    key_refers_to_the_new_job [detach, cancel],
    detached_job_never_has_a_key_again [detach],
    each_running_job_can_be_detached [detach],
    repeated_call_detaches_once [detach],
}

/// Takes the key `k` from a running job.
fn detaching(store: &TrialStore, queue: &QueueName, due: impl Into<Due>) -> NewJob {
    store.keyed(queue, due, "k", OnConflict::Keep).on_running(OnRunning::Detach)
}

/// A leased job had the key `k`; a job due in an hour has taken it.
async fn detached(store: &TrialStore, queue: &QueueName) -> TrialResult<(LeasedJob, NewJob)> {
    let leased = store.start_job(store.keyed(queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let new = detaching(store, queue, LATER);
    store.create(new.clone()).await?;
    Ok((leased, new))
}

async fn both_jobs_run(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.start_job(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let new = detaching(&store, &queue, Due::NOW);
    let receipt = store.create(new.clone()).await?;
    ensure_eq!(receipt.id, new.id, "the receipt is that of the new job");
    let counts = Counts { running: 1, ..Counts::ready(1) };
    store.expect_counts(&queue, counts, "after the new job was stored").await?;
    let second = store.lease_one(&queue).await?;
    ensure_eq!((second.job.id, second.job.key.clone()), (new.id, Some(key("k"))), "the new job");
    store.settle_accepted(&first, Verdict::Done).await?;
    ensure_matches!(
        store.schedule(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?,
        Scheduled::AlreadyRunning(receipt) if receipt.id == new.id,
        "the end of the first job does not free the key of the second"
    );
    store.settle_accepted(&second, Verdict::Done).await?;
    store.expect_counts(&queue, Counts::NONE, "after both jobs are done").await?;
    store.create(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    Ok(())
}

async fn running_job_has_no_key_any_more(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let (leased, new) = detached(&store, &queue).await?;
    let view = store.get_existing(&queue, leased.job.id).await?;
    ensure_eq!(view.job.key, None, "the detached job has lost its key");
    let found = store.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(new.id), "the key refers to the new job");
    Ok(())
}

async fn every_conflict_policy_detaches(store: TrialStore) -> TrialResult {
    for (policy, due) in [
        (OnConflict::Keep, Due::After(LATER)),
        (OnConflict::Replace, Due::After(LATER)),
        (OnConflict::Earliest, Due::After(LATER)),
        (OnConflict::Latest, Due::At(Timestamp::EPOCH)),
    ] {
        let queue = store.queue();
        let leased = store.start_job(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
        let new = store.keyed(&queue, due, "k", policy).on_running(OnRunning::Detach);
        ensure_matches!(
            store.schedule(new.clone()).await?,
            Scheduled::Created(receipt) if receipt.id == new.id,
            "{policy:?}: a running job is detached, and the new one is stored"
        );
        store.settle_accepted(&leased, Verdict::Done).await?;
        ensure_eq!(store.stats(&queue).await?.live(), 1, "{policy:?}: the new job stays");
    }
    Ok(())
}

async fn waiting_job_is_not_detached(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(
        store.schedule(detaching(&store, &queue, LATER)).await?,
        Scheduled::Kept(first),
        "the conflict policy decides about a waiting job"
    );
    let new = detaching(&store, &queue, LATER).on_conflict(OnConflict::Replace);
    let replaced = store.schedule(new).await?;
    ensure_matches!(replaced, Scheduled::Replaced(_), "the conflict policy decides");
    store.expect_counts(&queue, Counts::scheduled(1), "after keep and replace").await
}

async fn key_refers_to_the_new_job(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let (leased, new) = detached(&store, &queue).await?;
    ensure_eq!(
        store.cancel(&queue, leased.job.id).await?,
        Cancelled::AlreadyRunning,
        "the detached job runs"
    );
    ensure_eq!(store.cancel(&queue, key("k")).await?, Cancelled::Cancelled, "the new job waits");
    ensure_eq!(store.cancel(&queue, new.id).await?, Cancelled::NotFound, "it was cancelled by key");
    ensure_eq!(store.cancel(&queue, key("k")).await?, Cancelled::NotFound, "no job has the key");
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn detached_job_never_has_a_key_again(store: TrialStore) -> TrialResult {
    let mut verdicts = vec![
        Verdict::retry(Due::NOW, "a reason"),
        Verdict::Snooze(Due::NOW),
        Verdict::Release { started: true },
    ];
    if store.capabilities().again {
        verdicts.push(Verdict::Again { due: Due::NOW, payload: Bytes::from_static(b"next") });
    }
    if store.capabilities().dead_letters {
        verdicts.push(dead("no"));
    }
    for verdict in verdicts {
        let queue = store.queue();
        let (leased, new) = detached(&store, &queue).await?;
        store.settle_accepted(&leased, verdict.clone()).await?;
        if matches!(verdict, Verdict::Dead { .. }) {
            ensure_eq!(store.replay_all(&queue).await?, 1, "it does not conflict with its key");
        }
        store.lose_lease(&queue).await?;
        let again = store.lease_one(&queue).await?;
        ensure_eq!(
            (again.job.id, again.job.key.clone()),
            (leased.job.id, None),
            "a detached job has no key after {verdict:?}, and after an expiry"
        );
        let kept = store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
        ensure_matches!(kept, Scheduled::Kept(kept) if kept.id == new.id, "the new job has the key");
        store.settle_accepted(&again, Verdict::Done).await?;
    }
    Ok(())
}

async fn each_running_job_can_be_detached(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut running = Vec::new();
    for _ in 0..4 {
        running.push(store.start_job(detaching(&store, &queue, Due::NOW)).await?);
    }
    store.expect_counts(&queue, Counts::running(4), "with four jobs of one key").await?;
    // The first job detaches, and the second finds the first one waiting.
    let jobs = vec![detaching(&store, &queue, LATER), detaching(&store, &queue, LATER)];
    let first = jobs[0].id;
    ensure_matches!(
        store.schedule_all(jobs).await?[..],
        [Scheduled::Created(created), Scheduled::Kept(kept)]
            if created.id == first && kept.id == first,
        "each job of a call conflicts with those before it"
    );
    store.settle_all_done(&running).await?;
    store.expect_counts(&queue, Counts::scheduled(1), "after the running jobs are done").await
}

async fn repeated_call_detaches_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let (_, new) = detached(&store, &queue).await?;
    // As if the first answer was lost.
    store.create(new.clone()).await?;
    let counts = Counts { running: 1, ..Counts::scheduled(1) };
    store.expect_counts(&queue, counts, "after a repeated call").await?;

    let queue = store.queue();
    let job = detaching(&store, &queue, Due::NOW);
    store.create(job.clone()).await?;
    let leased = store.lease_one(&queue).await?;
    store.create(job).await?;
    ensure_matches!(
        store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?,
        Scheduled::AlreadyRunning(receipt) if receipt.id == leased.job.id,
        "a job does not detach itself"
    );
    Ok(())
}
