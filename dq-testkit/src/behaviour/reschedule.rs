//! Moving in time: an earlier time wakes, a later one never fires early.

use std::time::Duration;

use dq_core::{
    DeadKind, DeadReason, Due, JobRef, OnConflict, Reschedule, Rescheduled, Settled, Verdict,
};

use super::failure::{Failure, Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE, ids, want};
use super::stand::{Held, LATER, SOON, Stand, key};
use super::trial::topic;

topic! { "reschedule":
    earlier_fires_at_the_new_time [Reschedule],
    later_never_fires_early [Reschedule],
    due_job_goes_back_to_waiting [Reschedule],
    delay_counts_from_the_stores_now [Reschedule],
    by_key [Reschedule, Keys],
    job_stays_as_it_was [Reschedule],
    order_follows_the_new_times [Reschedule],
    running_job_is_not_moved [Reschedule],
    lapsed_job_is_moved [Reschedule],
    dead_job_is_not_found [Reschedule],
    unknown_job_is_not_found [Reschedule],
    job_of_another_queue_is_not_found [Reschedule],
    answers_come_in_the_order_asked [Reschedule],
    races_with_claim [Reschedule],
}

async fn earlier_fires_at_the_new_time(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, LATER)).await?;
    let due = stand.now().await? + SOON;
    ensure_matches!(
        stand.reschedule(&queue, receipt.id, due).await?,
        Rescheduled::Moved(moved) if moved.id == receipt.id && moved.due == due,
        "the receipt names the job and its new time"
    );
    let claimed = stand.claim(&[want(&queue, 1)]).await?;
    if claimed.jobs.is_empty() {
        ensure_eq!(claimed.next_due, Some(due), "whoever sleeps is told the new time");
        stand.reach(due).await?;
        stand.take_one(&queue).await?;
    }
    Ok(())
}

async fn later_never_fires_early(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.create(stand.job(&queue, SOON)).await?;
    let later = first.due + LATER;
    ensure_matches!(
        stand.reschedule(&queue, first.id, later).await?,
        Rescheduled::Moved(moved) if moved.due == later,
        "a waiting job is moved"
    );
    stand.reach(first.due + SOON).await?;
    stand.take_none(&queue, "the old time is void").await?;
    ensure_eq!(stand.stats(&queue).await?.next_due, Some(later), "the new time holds");
    Ok(())
}

async fn due_job_goes_back_to_waiting(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    ensure_matches!(
        stand.reschedule(&queue, id, LATER).await?,
        Rescheduled::Moved(_),
        "a job that is due and waits for a slot is moved"
    );
    stand.take_none(&queue, "it is due in an hour").await?;
    stand.expect(&queue, Counts::scheduled(1), "after it was put off").await
}

async fn delay_counts_from_the_stores_now(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, LATER * 5)).await?.id;
    let before = stand.now().await?;
    let moved = stand.reschedule(&queue, id, LATER).await?;
    let after = stand.now().await?;
    ensure_matches!(
        moved,
        Rescheduled::Moved(receipt) if (before + LATER..=after + LATER).contains(&receipt.due),
        "a delay counts from the store's now, not from the old time"
    );
    Ok(())
}

async fn by_key(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?.id;
    ensure_matches!(
        stand.reschedule(&queue, key("k"), Due::NOW).await?,
        Rescheduled::Moved(receipt) if receipt.id == id,
        "the receipt names the job that has the key"
    );
    ensure_eq!(
        stand.reschedule(&queue, key("K"), Due::NOW).await?,
        Rescheduled::NotFound,
        "a key that nobody has"
    );
    stand.take_one(&queue).await?;
    Ok(())
}

async fn job_stays_as_it_was(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE / 8).await?;
    stand.reach(lost.leased_until).await?;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Retry(LATER.into())).await?;
    let due = stand.now().await? - SOON;
    let moved = stand.reschedule(&queue, taken.job.id, due).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a job that waits for its retry is moved");
    let again = stand.take_one(&queue).await?.job;
    let wanted = dq_core::Job { due, attempts: 1, deliveries: 3, losses: 0, ..taken.job.clone() };
    ensure_eq!(again, wanted, "id, payload and counts stay");
    Ok(())
}

async fn order_follows_the_new_times(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await? - LATER;
    let at = |n: u64| now + Duration::from_millis(n);
    let mut created = Vec::new();
    for n in 0..10 {
        created.push(stand.create(stand.job(&queue, at(n))).await?.id);
    }
    // The order is turned round.
    for (id, n) in created.iter().zip(0..) {
        let moved = stand.reschedule(&queue, *id, at(100 - n)).await?;
        ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job is moved");
    }
    created.reverse();
    ensure_eq!(ids(&stand.take(&queue, 10).await?), created, "oldest due first, by the new times");
    Ok(())
}

async fn running_job_is_not_moved(stand: Stand) -> Passed {
    let Held { queue, taken, .. } =
        stand.hold(|stand, held| Box::pin(is_not_moved(stand, held))).await?;
    stand.reach(taken.leased_until).await?;
    let again = stand.take_one(&queue).await?;
    ensure_eq!(again.job.due, taken.job.due, "nothing was changed");
    Ok(())
}

async fn is_not_moved(stand: &Stand, held: &Held) -> Passed {
    let answer = stand.reschedule(&held.queue, held.taken.job.id, LATER).await?;
    ensure_eq!(answer, Rescheduled::AlreadyRunning, "a leased job is not moved");
    Ok(())
}

async fn lapsed_job_is_moved(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let lost = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(lost.leased_until).await?;
    ensure_matches!(
        stand.reschedule(&queue, id, LATER).await?,
        Rescheduled::Moved(_),
        "a job whose lease has ended waits, it does not run"
    );
    let late = stand.settle(lost.lease(), Verdict::Retry(Due::NOW)).await?;
    ensure_eq!(late, Settled::Stale, "the old holder cannot move it back");
    stand.take_none(&queue, "it is due in an hour").await
}

async fn dead_job_is_not_found(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    stand.accept(&taken, Verdict::Dead { reason, failed: true }).await?;
    let answer = stand.reschedule(&queue, id, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "the dead are replayed, not moved");
    stand.take_none(&queue, "the job is dead").await
}

async fn unknown_job_is_not_found(stand: Stand) -> Passed {
    let queue = stand.queue();
    let never = stand.job(&queue, Due::NOW).id;
    let answer = stand.reschedule(&queue, never, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "a job never scheduled");
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Done).await?;
    let answer = stand.reschedule(&queue, taken.job.id, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "a job that is done");
    stand.expect(&queue, Counts::NONE, "nothing was made up").await
}

async fn job_of_another_queue_is_not_found(stand: Stand) -> Passed {
    let (here, there) = (stand.queue(), stand.queue());
    let id = stand.create(stand.job(&here, LATER)).await?.id;
    stand.create(stand.job(&there, LATER)).await?;
    let answer = stand.reschedule(&there, id, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "a job lives in one queue");
    stand.take_none(&here, "it was not moved").await
}

async fn answers_come_in_the_order_asked(stand: Stand) -> Passed {
    let queue = stand.queue();
    let running = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    stand.take_one(&queue).await?;
    let waiting = stand.create(stand.job(&queue, LATER)).await?.id;
    let unknown = stand.job(&queue, LATER).id;
    let wish = |id, hours: u32| Reschedule {
        job: JobRef::new(queue.clone(), id),
        due: (LATER * hours).into(),
    };
    let wishes = [wish(unknown, 1), wish(running, 1), wish(waiting, 2), wish(waiting, 3)];
    let answers = stand.backend().reschedule(&wishes).await?;
    ensure_matches!(
        answers[..],
        [
            Rescheduled::NotFound,
            Rescheduled::AlreadyRunning,
            Rescheduled::Moved(first),
            Rescheduled::Moved(second)
        ] if first.due < second.due,
        "answers come in the order asked"
    );
    ensure!(stand.backend().reschedule(&[]).await?.is_empty(), "no moves, no answers");
    Ok(())
}

async fn races_with_claim(stand: Stand) -> Passed {
    for _ in 0..60 {
        let queue = stand.queue();
        let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
        let (caller, runner) = (stand.handle(), stand.handle());
        let (there, here) = (queue.clone(), queue.clone());
        let put_off = tokio::spawn(async move { caller.reschedule(&there, id, LATER).await });
        let claim = tokio::spawn(async move { runner.take(&here, 1).await });
        let answer = put_off.await.map_err(Failure::new)??;
        let leased = claim.await.map_err(Failure::new)??.len();
        match answer {
            Rescheduled::Moved(_) => ensure_eq!(leased, 0, "a later time never fires early"),
            Rescheduled::AlreadyRunning => ensure_eq!(leased, 1, "it runs, as was said"),
            other => return Err(Failure::new(format_args!("one of both wins, not {other:?}"))),
        }
    }
    Ok(())
}
