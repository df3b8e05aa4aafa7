//! Detaching: a running job gives up its key to a new one.

use dq_core::{Cancelled, Due, NewJob, OnConflict, OnRunning, QueueName, Scheduled, Verdict};

use super::client::Counts;
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore, key};
use super::trial::topic;

topic! { "detach":
    both_jobs_run [detach],
    key_refers_to_the_new_job_only [detach, browse, cancel],
}

fn detaching(store: &TrialStore, queue: &QueueName, due: impl Into<Due>) -> NewJob {
    store.keyed(queue, due, "k", OnConflict::Keep).on_running(OnRunning::Detach)
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

async fn key_refers_to_the_new_job_only(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let leased = store.start_job(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let new = detaching(&store, &queue, LATER);
    store.create(new.clone()).await?;
    let view = store.get_existing(&queue, leased.job.id).await?;
    ensure_eq!(view.job.key, None, "the detached job has lost its key");
    let found = store.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(new.id), "the key refers to the new job");
    let answer = store.cancel(&queue, leased.job.id).await?;
    ensure_eq!(answer, Cancelled::AlreadyRunning, "the detached job runs");
    ensure_eq!(store.cancel(&queue, key("k")).await?, Cancelled::Cancelled, "the new job waits");
    ensure_eq!(store.cancel(&queue, new.id).await?, Cancelled::NotFound, "it was cancelled by key");
    ensure_eq!(store.cancel(&queue, key("k")).await?, Cancelled::NotFound, "no job has the key");
    store.settle_accepted(&leased, Verdict::Done).await
}
