//! Missing capabilities: the backend rejects such calls, and never ignores them.

use dq_core::{
    Announcement, BrowseParams, Due, ErrorKind, JobRef, JobState, OnConflict, OnRunning, Operation,
    Reschedule, Result, Settlement, Timestamp, Verdict,
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
    detach_is_refused [NoDetach, Keys],
    next_step_is_refused [NoAgain],
    remembering_is_refused [NoHistory],
    listing_of_ended_jobs_is_refused [NoHistory, Browse],
    registry_is_refused [NoRegistry],
    forecast_is_refused [NoForecast],
}

/// The message must name the backend.
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
    let page = BrowseParams::new(&queue, JobState::Scheduled).limit(1).payloads(true);
    unsupported(&store, checked.backend().browse(page).await)?;
    unsupported(&store, checked.backend().get(&JobRef::new(queue.clone(), id)).await)
}

async fn replay_and_remove_are_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let checked = store.checked();
    let jobs = [store.create(store.job(&queue, LATER)).await?.id];
    let replay = Operation::Replay { queue: &queue, jobs: &jobs, due: Due::NOW };
    unsupported(&store, checked.backend().operate(replay).await)?;
    let remove = Operation::Remove { queue: &queue, jobs: &jobs };
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

async fn detach_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.keyed(&queue, LATER, "k", OnConflict::Keep).on_running(OnRunning::Detach);
    unsupported(&store, store.checked().backend().schedule(vec![job]).await)?;
    store.expect_counts(&queue, Counts::NONE, "after a refused call").await
}

async fn next_step_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    let again = Verdict::Again { due: Due::NOW, payload: "next".into() };
    let settlement = [Settlement::new(leased.lease(), again)];
    unsupported(&store, store.checked().backend().settle(&settlement).await)?;
    store.settle_accepted(&leased, Verdict::Done).await
}

async fn remembering_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let jobs = vec![store.job(&queue, LATER), store.job(&queue, LATER).remember(LATER)];
    unsupported(&store, store.checked().backend().schedule(jobs).await)?;
    store.expect_counts(&queue, Counts::NONE, "after a refused call").await
}

async fn listing_of_ended_jobs_is_refused(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let page = BrowseParams::new(&queue, JobState::Ended);
    unsupported(&store, store.checked().backend().browse(page).await)
}

async fn registry_is_refused(store: TrialStore) -> TrialResult {
    let checked = store.checked();
    let announcement = Announcement::new(store.name("a"), "{}", LATER);
    unsupported(&store, checked.backend().announce(announcement).await)?;
    unsupported(&store, checked.backend().runners().await)
}

async fn forecast_is_refused(store: TrialStore) -> TrialResult {
    let edges = [0, 1].map(Timestamp::from_millis);
    unsupported(&store, store.checked().backend().forecast(&store.queue(), &edges).await)
}
