//! Hints: a listener wakes when a job is due earlier than all others in its queues.

use std::time::Duration;

use dq_core::{Due, Hint, OnConflict, Operation, Rescheduled, Timestamp, Wakeups};
use futures_util::FutureExt as _;

use super::client::WORKER;
use super::failure::{Failure, TrialResult, ensure, ensure_matches};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "wake":
    first_job_wakes_a_listener,
    earlier_due_time_wakes_a_listener,
    hint_is_kept_until_it_is_received,
    pending_hints_merge_into_the_earliest,
    each_listener_is_woken,
    one_listener_covers_several_queues,
    resume_wakes_a_listener [pause],
    job_of_another_process_wakes_a_listener [shared, real_time],
}

/// A later hint counts as lost.
const HINT_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for a hint for `due` or earlier. Later times may be old hints.
pub(super) async fn hint(wakeups: &mut Wakeups, due: Timestamp, why: &str) -> TrialResult {
    let wait = async {
        loop {
            let Hint { due: hinted } = wakeups.next().await;
            if hinted <= due {
                return;
            }
        }
    };
    tokio::time::timeout(HINT_TIMEOUT, wait)
        .await
        .map_err(|_| Failure::new(format_args!("a listener is woken for {due}: {why}")))
}

async fn listen(store: &TrialStore, queues: &[dq_core::QueueName]) -> TrialResult<Wakeups> {
    Ok(store.backend().listen(queues, WORKER).await?)
}

async fn first_job_wakes_a_listener(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut wakeups = listen(&store, std::slice::from_ref(&queue)).await?;
    let sleeper = tokio::spawn(async move { wakeups.next().await });
    let receipt = store.create(store.job(&queue, Due::NOW)).await?;
    let hint = tokio::time::timeout(HINT_TIMEOUT, sleeper)
        .await
        .map_err(|_| Failure::new("a job in an empty queue wakes a listener"))?
        .map_err(Failure::new)?;
    ensure!(hint.due <= receipt.due, "the hint is not later than the job: {hint:?}");
    Ok(())
}

async fn earlier_due_time_wakes_a_listener(store: TrialStore) -> TrialResult {
    let (can, queue) = (store.capabilities(), store.queue());
    let id = store.create(store.job(&queue, LATER * 9)).await?.id;
    if can.keys {
        store.create(store.keyed(&queue, LATER * 9, "k", OnConflict::Replace)).await?;
    }
    let mut wakeups = listen(&store, std::slice::from_ref(&queue)).await?;
    for hours in [8, 7] {
        let receipt = store.create(store.job(&queue, LATER * hours)).await?;
        hint(&mut wakeups, receipt.due, "a job earlier than all others").await?;
    }
    if can.keys {
        let new = store.keyed(&queue, LATER * 6, "k", OnConflict::Replace);
        let due = store.schedule(new).await?.due();
        hint(&mut wakeups, due, "the replacement is due earlier").await?;
    }
    if can.reschedule {
        let moved = store.reschedule(&queue, id, LATER * 5).await?;
        ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job is moved");
        let Rescheduled::Moved(receipt) = moved else { return Ok(()) };
        hint(&mut wakeups, receipt.due, "the job was moved to an earlier time").await?;
    }
    Ok(())
}

async fn hint_is_kept_until_it_is_received(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut wakeups = listen(&store, std::slice::from_ref(&queue)).await?;
    // A runner waits in `select!`, which drops the wait when another branch completes first. A
    // dropped wait must not lose the next hint.
    for _ in 0..3 {
        wakeups.next().now_or_never();
    }
    let receipt = store.create(store.job(&queue, LATER)).await?;
    hint(&mut wakeups, receipt.due, "it is kept until it is received").await
}

async fn pending_hints_merge_into_the_earliest(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut wakeups = listen(&store, std::slice::from_ref(&queue)).await?;
    let mut earliest = Timestamp::MAX;
    // Nobody waits meanwhile. Each job except the last is earlier than those before and sends a
    // hint. The last job's hint, if any, must not replace an earlier time.
    for minutes in [50, 40, 30, 20, 10, 60] {
        let due = Duration::from_secs(60) * minutes;
        earliest = earliest.min(store.create(store.job(&queue, due)).await?.due);
    }
    hint(&mut wakeups, earliest, "several pending hints merge into the earliest").await
}

async fn each_listener_is_woken(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut listeners = Vec::new();
    for _ in 0..4 {
        listeners.push(listen(&store, std::slice::from_ref(&queue)).await?);
    }
    // Others may stop to listen.
    listeners.truncate(3);
    drop(listeners.remove(0));
    let receipt = store.create(store.job(&queue, LATER)).await?;
    for mut listener in listeners {
        hint(&mut listener, receipt.due, "each of two listeners gets a hint").await?;
    }
    Ok(())
}

async fn one_listener_covers_several_queues(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    let mut wakeups = listen(&store, &queues).await?;
    let mut hours = 4;
    for queue in &queues {
        hours -= 1;
        let receipt = store.create(store.job(queue, LATER * hours)).await?;
        hint(&mut wakeups, receipt.due, "it listens to each of these queues").await?;
    }
    Ok(())
}

async fn resume_wakes_a_listener(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.operate(Operation::Pause { queue: &queue }).await?;
    let receipt = store.create(store.job(&queue, Due::NOW)).await?;
    let mut wakeups = listen(&store, std::slice::from_ref(&queue)).await?;
    store.operate(Operation::Resume { queue: &queue }).await?;
    let latest = receipt.due.max(store.now().await?);
    hint(&mut wakeups, latest, "the due job may start").await
}

async fn job_of_another_process_wakes_a_listener(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let other = store.second_client().await?;
    store.create(store.job(&queue, LATER * 9)).await?;
    let mut wakeups = listen(&store, std::slice::from_ref(&queue)).await?;
    for hours in [3, 2, 1] {
        let receipt = other.create(store.job(&queue, LATER * hours)).await?;
        hint(&mut wakeups, receipt.due, "another process stored an earlier job").await?;
    }
    Ok(())
}
