//! Capabilities that a backend lacks: such calls are refused, never ignored.

use dq_core::{
    BrowseParams, Due, ErrorKind, JobRef, JobState, OnConflict, Operation, Reschedule, Result,
};

use super::client::Counts;
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "unsupported":
    keys_are_refused [NoKeys],
    cancel_is_refused [NoCancel],
    reschedule_is_refused [NoReschedule],
    browse_and_get_are_refused [NoBrowse],
    replay_and_remove_are_refused [NoDeadLetters],
    pause_is_refused [NoPause],
}

/// Requires that a call was refused with `Unsupported` and a message that names the backend.
fn unsupported<T: std::fmt::Debug>(store: &TrialStore, answer: Result<T>) -> TrialResult {
    match answer {
        Ok(answer) => {
            Err(Failure::new(format_args!("a call without the capability returned {answer:?}")))
        }
        Err(error) => {
            ensure_eq!(
                error.kind(),
                ErrorKind::Unsupported,
                "a call without the capability: {error}"
            );
            let backend = store.backend().name();
            ensure!(error.to_string().contains(backend), "the message names the backend: {error}");
            Ok(())
        }
    }
}

async fn keys_are_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let jobs = vec![store.job(&queue, LATER), store.keyed(&queue, LATER, "k", OnConflict::Keep)];
    unsupported(&store, store.checked().backend().schedule(jobs).await)?;
    store.expect_counts(&queue, Counts::NONE, "after a batch with a key was refused").await
}

async fn cancel_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, LATER)).await?.id;
    unsupported(&store, store.checked().backend().cancel(&[JobRef::new(queue.clone(), id)]).await)?;
    store.expect_counts(&queue, Counts::scheduled(1), "after a refused cancel").await
}

async fn reschedule_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, LATER)).await?.id;
    let change = Reschedule { job: JobRef::new(queue.clone(), id), due: Due::NOW };
    unsupported(&store, store.checked().backend().reschedule(&[change]).await)?;
    store.expect_counts(&queue, Counts::scheduled(1), "no job was moved").await
}

async fn browse_and_get_are_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, LATER)).await?.id;
    let checked = store.checked();
    let page = BrowseParams { queue: &queue, state: JobState::Scheduled, after: None, limit: 1 };
    unsupported(&store, checked.backend().browse(page).await)?;
    unsupported(&store, checked.backend().get(&JobRef::new(queue.clone(), id)).await)
}

async fn replay_and_remove_are_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let checked = store.checked();
    let replay = Operation::Replay { queue: &queue, jobs: None, due: Due::NOW };
    unsupported(&store, checked.backend().operate(replay).await)?;
    let remove = Operation::Remove { queue: &queue, jobs: None };
    unsupported(&store, checked.backend().operate(remove).await)
}

async fn pause_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let checked = store.checked();
    for operation in [Operation::Pause { queue: &queue }, Operation::Resume { queue: &queue }] {
        unsupported(&store, checked.backend().operate(operation).await)?;
    }
    store.lease_one(&queue).await?;
    Ok(())
}
