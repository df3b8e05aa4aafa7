//! Reasons: why a job waits for a retry, and which runner holds it since when.

use dq_core::{DeadKind, DeadReason, Due, JobId, JobState, Operation, QueueName, Verdict};

use super::client::{BRIEF_LEASE, LEASE};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::TrialStore;
use super::trial::topic;

topic! { "reasons":
    error_of_a_retry_is_shown [reasons],
    error_keeps_its_attempt_after_a_death [reasons, dead_letters],
    holder_of_a_lease_is_shown [reasons],
    each_lease_has_its_own_holder [reasons],
}

async fn fail(store: &TrialStore, queue: &QueueName, error: &str) -> TrialResult {
    let leased = store.lease_one(queue).await?;
    store.settle_accepted(&leased, Verdict::retry(Due::NOW, error)).await
}

async fn last_error(
    store: &TrialStore,
    queue: &QueueName,
    id: JobId,
) -> TrialResult<Option<String>> {
    Ok(store.get_existing(queue, id).await?.last_error)
}

async fn error_of_a_retry_is_shown(store: TrialStore) -> TrialResult {
    let long = "é".repeat(DeadReason::MAX_BYTES / 2);
    for error in ["card 'x' \"expired\"\n\tat line 1", "ожидалось число", "🪦", "{}", "|:,", &long]
    {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        ensure_eq!(last_error(&store, &queue, id).await?, None, "a job that has not run");
        fail(&store, &queue, error).await?;
        let view = store.get_existing(&queue, id).await?;
        let found = view.last_error.as_deref();
        ensure!(found == Some(error), "the error {error:?} is unchanged: {found:?}");
        let listed = store.list(&queue, JobState::Ready, 10).await?;
        ensure_eq!(listed, [view], "a listing has the error, too");
    }
    Ok(())
}

async fn error_keeps_its_attempt_after_a_death(store: TrialStore) -> TrialResult {
    for kind in [DeadKind::Exhausted, DeadKind::Lost] {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        fail(&store, &queue, "first").await?;
        fail(&store, &queue, "second").await?;
        let leased = store.lease_one(&queue).await?;
        let verdict = Verdict::dead(DeadReason::new(kind, "third"));
        store.settle_accepted(&leased, verdict).await?;

        let view = store.get_existing(&queue, id).await?;
        ensure_eq!(view.last_error.as_deref(), Some("second"), "the error before the death");
        ensure_eq!(view.last_error_attempt(), Some(2), "its attempt, {kind:?}");
        ensure_eq!(store.list(&queue, JobState::Dead, 10).await?, [view], "the same in a listing");
        if store.capabilities().history {
            store.operate(Operation::Remove { queue: &queue, jobs: &[id] }).await?;
            let (view, _) = store.get_ended(&queue, id).await?;
            ensure_eq!(view.death(), Some(kind), "the kind of death of a removed job");
            ensure_eq!(view.last_error_attempt(), Some(2), "the same of a removed job, {kind:?}");
        }
    }
    Ok(())
}

async fn holder_of_a_lease_is_shown(store: TrialStore) -> TrialResult {
    for worker in ["host-1:4711", "работник 🚚 \"'", &"w".repeat(200)] {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let before = store.now().await?;
        store.lease_one_as(worker, &queue, LEASE).await?;
        let after = store.now().await?;
        let view = store.get_existing(&queue, id).await?;
        ensure_eq!(view.worker.as_deref(), Some(worker), "the name of the holder is unchanged");
        let since = view.leased_since.unwrap_or_default();
        ensure!(
            before <= since && since <= after,
            "the start of the lease is the store's time at the claim: {since} is not within \
             {before} to {after}"
        );
        let listed = store.list(&queue, JobState::Running, 10).await?;
        ensure_eq!(listed, [view], "a listing has the holder, too");
    }
    Ok(())
}

async fn each_lease_has_its_own_holder(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    fail(&store, &queue, "a reason").await?;
    let lost = store.lease_one_as("first", &queue, BRIEF_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let error = last_error(&store, &queue, id).await?;
    ensure_eq!(error.as_deref(), Some("a reason"), "an expiry keeps the error of a retry");
    let leased = store.lease_one_as("second", &queue, LEASE).await?;
    let before = store.get_existing(&queue, id).await?;
    ensure_eq!(before.worker.as_deref(), Some("second"), "the holder of the current lease");
    ensure!(before.leased_since >= Some(lost.leased_until), "the start of the current lease");
    store.wait_for(std::time::Duration::from_millis(5)).await?;
    store.renew(leased.lease(), LEASE * 2).await?;
    let after = store.get_existing(&queue, id).await?;
    ensure!(after.leased_until > before.leased_until, "the lease was renewed");
    ensure_eq!(
        (after.leased_since, after.worker),
        (before.leased_since, before.worker),
        "a renewed lease has the same start and holder"
    );
    Ok(())
}
