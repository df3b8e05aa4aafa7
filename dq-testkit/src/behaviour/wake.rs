//! Hints: whoever sleeps is woken when something is due earlier than thought.

use std::time::Duration;

use dq_core::{Due, Hint, OnConflict, Operation, Rescheduled, Timestamp, Wakeups};

use super::failure::{Failure, Passed, ensure, ensure_matches};
use super::stand::{LATER, Stand};
use super::trial::topic;

topic! { "wake":
    first_job_wakes,
    earlier_job_wakes,
    hint_is_kept_until_it_is_looked_at,
    hints_fold_into_the_earliest,
    each_listener_is_woken,
    one_listener_for_several_queues,
    replacement_that_is_earlier_wakes [Keys],
    move_to_an_earlier_time_wakes [Reschedule],
    resume_wakes [Pause],
    listener_that_is_gone_disturbs_nobody,
    job_of_another_handle_wakes [Shared, RealTime],
}

/// A hint that does not come within this is lost, whatever the machine.
const BOUND: Duration = Duration::from_secs(60);

/// Waits for a hint that says `due` or earlier. Others may come before it: hints may be repeated.
async fn hint(wakeups: &mut Wakeups, due: Timestamp, why: &str) -> Passed {
    let wait = async {
        loop {
            let Hint { due: hinted } = wakeups.next().await;
            if hinted <= due {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, wait)
        .await
        .map_err(|_| Failure::new(format_args!("a listener is woken for {due}: {why}")))
}

async fn listen(stand: &Stand, queues: &[dq_core::QueueName]) -> Passed<Wakeups> {
    Ok(stand.backend().listen(queues).await?)
}

async fn first_job_wakes(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    let sleeper = tokio::spawn(async move { wakeups.next().await });
    let receipt = stand.create(stand.job(&queue, Due::NOW)).await?;
    let hint = tokio::time::timeout(BOUND, sleeper)
        .await
        .map_err(|_| Failure::new("a job in an empty queue wakes who sleeps"))?
        .map_err(Failure::new)?;
    ensure!(hint.due <= receipt.due, "the hint is not later than the job: {hint:?}");
    Ok(())
}

async fn earlier_job_wakes(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, LATER * 3)).await?;
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    for hours in [2, 1] {
        let receipt = stand.create(stand.job(&queue, LATER * hours)).await?;
        hint(&mut wakeups, receipt.due, "a job earlier than all others").await?;
    }
    Ok(())
}

async fn hint_is_kept_until_it_is_looked_at(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    let receipt = stand.create(stand.job(&queue, LATER)).await?;
    // Looks that are broken off, as in a `select!`, take nothing away.
    for _ in 0..3 {
        let look = wakeups.next();
        drop(look);
    }
    hint(&mut wakeups, receipt.due, "it came while nobody looked").await
}

async fn hints_fold_into_the_earliest(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    let mut earliest = Timestamp::MAX;
    for minutes in [50, 40, 30, 20, 10, 60] {
        let due = Duration::from_secs(60) * minutes;
        earliest = earliest.min(stand.create(stand.job(&queue, due)).await?.due);
    }
    hint(&mut wakeups, earliest, "the earliest of several that nobody looked at").await
}

async fn each_listener_is_woken(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut first = listen(&stand, std::slice::from_ref(&queue)).await?;
    let mut second = listen(&stand, std::slice::from_ref(&queue)).await?;
    let receipt = stand.create(stand.job(&queue, LATER)).await?;
    hint(&mut first, receipt.due, "there are two of them").await?;
    hint(&mut second, receipt.due, "there are two of them").await
}

async fn one_listener_for_several_queues(stand: Stand) -> Passed {
    let queues = [stand.queue(), stand.queue(), stand.queue()];
    let mut wakeups = listen(&stand, &queues).await?;
    let mut hours = 4;
    for queue in &queues {
        hours -= 1;
        let receipt = stand.create(stand.job(queue, LATER * hours)).await?;
        hint(&mut wakeups, receipt.due, "it listens to each of these queues").await?;
    }
    Ok(())
}

async fn replacement_that_is_earlier_wakes(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, LATER * 2, "k", OnConflict::Replace)).await?;
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    let new = stand.put(stand.keyed(&queue, LATER, "k", OnConflict::Replace)).await?;
    hint(&mut wakeups, new.due(), "the replacement is due earlier").await
}

async fn move_to_an_earlier_time_wakes(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, LATER * 2)).await?.id;
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    let moved = stand.reschedule(&queue, id, LATER).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job is moved");
    let Rescheduled::Moved(receipt) = moved else { return Ok(()) };
    hint(&mut wakeups, receipt.due, "the job was moved to an earlier time").await
}

async fn resume_wakes(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.operate(Operation::Pause { queue: &queue }).await?;
    let receipt = stand.create(stand.job(&queue, Due::NOW)).await?;
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    stand.operate(Operation::Resume { queue: &queue }).await?;
    let latest = receipt.due.max(stand.now().await?);
    hint(&mut wakeups, latest, "what waited may start now").await
}

async fn listener_that_is_gone_disturbs_nobody(stand: Stand) -> Passed {
    let queue = stand.queue();
    drop(listen(&stand, std::slice::from_ref(&queue)).await?);
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    drop(listen(&stand, std::slice::from_ref(&queue)).await?);
    let receipt = stand.create(stand.job(&queue, LATER)).await?;
    hint(&mut wakeups, receipt.due, "others that listened are gone").await
}

async fn job_of_another_handle_wakes(stand: Stand) -> Passed {
    let queue = stand.queue();
    let other = stand.second().await?;
    stand.create(stand.job(&queue, LATER * 9)).await?;
    let mut wakeups = listen(&stand, std::slice::from_ref(&queue)).await?;
    for hours in [3, 2, 1] {
        let receipt = other.create(stand.job(&queue, LATER * hours)).await?;
        hint(&mut wakeups, receipt.due, "another process stored an earlier job").await?;
    }
    Ok(())
}
