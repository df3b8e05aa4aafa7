//! What a backend does not offer is refused by name, never ignored.

use dq_core::{
    BrowseParams, Due, ErrorKind, JobRef, JobState, OnConflict, Operation, Reschedule, Result,
};

use super::failure::{Failure, Passed, ensure, ensure_eq};
use super::handle::Counts;
use super::stand::{LATER, Stand};
use super::trial::topic;

topic! { "unsupported":
    keys_are_refused [NoKeys],
    cancel_is_refused [NoCancel],
    reschedule_is_refused [NoReschedule],
    looking_is_refused [NoBrowse],
    replay_and_removal_are_refused [NoDeadLetters],
    pause_is_refused [NoPause],
}

fn unsupported<T: std::fmt::Debug>(stand: &Stand, answer: Result<T>) -> Passed {
    match answer {
        Ok(answer) => Err(Failure::new(format_args!("what is not offered answered {answer:?}"))),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Unsupported, "what is not offered: {error}");
            let backend = stand.backend().name();
            ensure!(error.to_string().contains(backend), "the message names the backend: {error}");
            Ok(())
        }
    }
}

async fn keys_are_refused(stand: Stand) -> Passed {
    let queue = stand.queue();
    let jobs = vec![stand.job(&queue, LATER), stand.keyed(&queue, LATER, "k", OnConflict::Keep)];
    unsupported(&stand, stand.checked().backend().schedule(jobs).await)?;
    stand.expect(&queue, Counts::NONE, "nothing of the call was stored").await
}

async fn cancel_is_refused(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, LATER)).await?.id;
    unsupported(&stand, stand.checked().backend().cancel(&[JobRef::new(queue.clone(), id)]).await)?;
    stand.expect(&queue, Counts::scheduled(1), "nothing was cancelled").await
}

async fn reschedule_is_refused(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, LATER)).await?.id;
    let wish = Reschedule { job: JobRef::new(queue.clone(), id), due: Due::NOW };
    unsupported(&stand, stand.checked().backend().reschedule(&[wish]).await)?;
    stand.expect(&queue, Counts::scheduled(1), "nothing was moved").await
}

async fn looking_is_refused(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, LATER)).await?.id;
    let checked = stand.checked();
    let page = BrowseParams { queue: &queue, state: JobState::Scheduled, after: None, limit: 1 };
    unsupported(&stand, checked.backend().browse(page).await)?;
    unsupported(&stand, checked.backend().get(&JobRef::new(queue.clone(), id)).await)
}

async fn replay_and_removal_are_refused(stand: Stand) -> Passed {
    let queue = stand.queue();
    let checked = stand.checked();
    let replay = Operation::Replay { queue: &queue, jobs: None, due: Due::NOW };
    unsupported(&stand, checked.backend().operate(replay).await)?;
    let remove = Operation::Remove { queue: &queue, jobs: None };
    unsupported(&stand, checked.backend().operate(remove).await)
}

async fn pause_is_refused(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let checked = stand.checked();
    for operation in [Operation::Pause { queue: &queue }, Operation::Resume { queue: &queue }] {
        unsupported(&stand, checked.backend().operate(operation).await)?;
    }
    stand.take_one(&queue).await?;
    Ok(())
}
