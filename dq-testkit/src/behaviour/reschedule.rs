//! Reschedules: the new due time replaces the old one.

use std::time::Duration;

use dq_core::{
    DeadKind, DeadReason, Due, JobRef, OnConflict, Reschedule, Rescheduled, Settled, Verdict,
};

use super::client::{Counts, LAPSING_LEASE, SHORT_LEASE, ids, want};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, ShortLease, TrialStore, key};
use super::trial::topic;

topic! { "reschedule":
    earlier_due_time_takes_effect [Reschedule],
    later_due_time_takes_effect [Reschedule],
    due_job_is_scheduled_again [Reschedule],
    delay_is_relative_to_the_store_clock [Reschedule],
    job_is_rescheduled_by_its_key [Reschedule, Keys],
    rescheduled_job_is_otherwise_unchanged [Reschedule],
    order_follows_the_new_due_times [Reschedule],
    running_job_is_not_rescheduled [Reschedule],
    lapsed_job_is_rescheduled [Reschedule],
    dead_job_is_not_found [Reschedule],
    unknown_job_is_not_found [Reschedule],
    job_of_another_queue_is_not_found [Reschedule],
    answers_are_in_request_order [Reschedule],
    reschedule_races_with_claim [Reschedule],
}

async fn earlier_due_time_takes_effect(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, LATER)).await?;
    let due = store.now().await? + SOON;
    ensure_matches!(
        store.reschedule(&queue, receipt.id, due).await?,
        Rescheduled::Moved(moved) if moved.id == receipt.id && moved.due == due,
        "the receipt has the job's id and new due time"
    );
    let claimed = store.claim(&[want(&queue, 1)]).await?;
    if claimed.jobs.is_empty() {
        ensure_eq!(claimed.next_due, Some(due), "`next_due` is the new due time");
        store.wait_until(due).await?;
        store.lease_one(&queue).await?;
    }
    Ok(())
}

async fn later_due_time_takes_effect(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.create(store.job(&queue, SOON)).await?;
    let later = first.due + LATER;
    ensure_matches!(
        store.reschedule(&queue, first.id, later).await?,
        Rescheduled::Moved(moved) if moved.due == later,
        "a waiting job is moved"
    );
    store.wait_until(first.due + SOON).await?;
    store.expect_empty_claim(&queue, "the old due time does not apply").await?;
    ensure_eq!(store.stats(&queue).await?.next_due, Some(later), "`next_due` is the new due time");
    Ok(())
}

async fn due_job_is_scheduled_again(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    ensure_matches!(
        store.reschedule(&queue, id, LATER).await?,
        Rescheduled::Moved(_),
        "a due job that waits for a slot is moved"
    );
    store.expect_empty_claim(&queue, "it is due in an hour").await?;
    store.expect_counts(&queue, Counts::scheduled(1), "after it was moved to a later time").await
}

async fn delay_is_relative_to_the_store_clock(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, LATER * 5)).await?.id;
    let before = store.now().await?;
    let moved = store.reschedule(&queue, id, LATER).await?;
    let after = store.now().await?;
    ensure_matches!(
        moved,
        Rescheduled::Moved(receipt) if (before + LATER..=after + LATER).contains(&receipt.due),
        "a delay is relative to the store's clock, not to the old due time"
    );
    Ok(())
}

async fn job_is_rescheduled_by_its_key(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?.id;
    ensure_matches!(
        store.reschedule(&queue, key("k"), Due::NOW).await?,
        Rescheduled::Moved(receipt) if receipt.id == id,
        "the receipt has the id of the job that holds the key"
    );
    ensure_eq!(
        store.reschedule(&queue, key("K"), Due::NOW).await?,
        Rescheduled::NotFound,
        "an unknown key"
    );
    store.lease_one(&queue).await?;
    Ok(())
}

async fn rescheduled_job_is_otherwise_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::retry(LATER.into(), "a reason")).await?;
    let due = store.now().await? - SOON;
    let moved = store.reschedule(&queue, leased.job.id, due).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a job that waits for its retry is moved");
    let again = store.lease_one(&queue).await?.job;
    let mut wanted = leased.job.clone();
    wanted.due = due;
    wanted.first_due = due;
    wanted.attempts = 1;
    wanted.deliveries = 3;
    wanted.losses = 0;
    ensure_eq!(again, wanted, "id, payload and counts are unchanged");
    Ok(())
}

async fn order_follows_the_new_due_times(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let start = store.now().await? - LATER;
    let at = |n: u64| start + Duration::from_millis(n);
    let mut created = Vec::new();
    for n in 0..10 {
        created.push(store.create(store.job(&queue, at(n))).await?.id);
    }
    for (id, n) in created.iter().zip(0..) {
        let moved = store.reschedule(&queue, *id, at(100 - n)).await?;
        ensure_matches!(moved, Rescheduled::Moved(_), "a waiting job is moved");
    }
    created.reverse();
    ensure_eq!(
        ids(&store.lease(&queue, 10).await?),
        created,
        "jobs are in the order of their new due times"
    );
    Ok(())
}

async fn running_job_is_not_rescheduled(store: TrialStore) -> TrialResult {
    let ShortLease { queue, leased, .. } =
        store.while_leased(|store, held| Box::pin(is_not_moved(store, held))).await?;
    store.wait_until(leased.leased_until).await?;
    let again = store.lease_one(&queue).await?;
    ensure_eq!(again.job.due, leased.job.due, "the job is unchanged");
    Ok(())
}

async fn is_not_moved(store: &TrialStore, held: &ShortLease) -> TrialResult {
    let answer = store.reschedule(&held.queue, held.leased.job.id, LATER).await?;
    ensure_eq!(answer, Rescheduled::AlreadyRunning, "a leased job is not moved");
    Ok(())
}

async fn lapsed_job_is_rescheduled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let lost = store.lease_one_for(&queue, SHORT_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    ensure_matches!(
        store.reschedule(&queue, id, LATER).await?,
        Rescheduled::Moved(_),
        "a lapsed job is waiting, not running"
    );
    let late = store.settle(lost.lease(), Verdict::retry(Due::NOW, "a reason")).await?;
    ensure_eq!(late, Settled::Stale, "a stale lease cannot move it back");
    store.expect_empty_claim(&queue, "it is due in an hour").await
}

async fn dead_job_is_not_found(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    let answer = store.reschedule(&queue, id, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "a dead job is not moved");
    store.expect_empty_claim(&queue, "the job is dead").await
}

async fn unknown_job_is_not_found(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let unknown = store.job(&queue, Due::NOW).id;
    let answer = store.reschedule(&queue, unknown, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "an unknown job");
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let answer = store.reschedule(&queue, leased.job.id, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "a job that is done");
    store.expect_counts(&queue, Counts::NONE, "no job was created").await
}

async fn job_of_another_queue_is_not_found(store: TrialStore) -> TrialResult {
    let (here, there) = (store.queue(), store.queue());
    let id = store.create(store.job(&here, LATER)).await?.id;
    store.create(store.job(&there, LATER)).await?;
    let answer = store.reschedule(&there, id, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "a job of another queue");
    store.expect_empty_claim(&here, "it was not moved").await
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let running = store.create(store.job(&queue, Due::NOW)).await?.id;
    store.lease_one(&queue).await?;
    let waiting = store.create(store.job(&queue, LATER)).await?.id;
    let unknown = store.job(&queue, LATER).id;
    let change = |id, hours: u32| Reschedule {
        job: JobRef::new(queue.clone(), id),
        due: (LATER * hours).into(),
    };
    let changes = [change(unknown, 1), change(running, 1), change(waiting, 2), change(waiting, 3)];
    let answers = store.backend().reschedule(&changes).await?;
    ensure_matches!(
        answers[..],
        [
            Rescheduled::NotFound,
            Rescheduled::AlreadyRunning,
            Rescheduled::Moved(first),
            Rescheduled::Moved(second)
        ] if first.due < second.due,
        "answers are in request order"
    );
    ensure!(store.backend().reschedule(&[]).await?.is_empty(), "an empty batch has no answers");
    Ok(())
}

async fn reschedule_races_with_claim(store: TrialStore) -> TrialResult {
    for _ in 0..60 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let (caller, runner) = (store.client(), store.client());
        let (moved_queue, claim_queue) = (queue.clone(), queue.clone());
        let reschedule =
            tokio::spawn(async move { caller.reschedule(&moved_queue, id, LATER).await });
        let claim = tokio::spawn(async move { runner.lease(&claim_queue, 1).await });
        let answer = reschedule.await.map_err(Failure::new)??;
        let leased = claim.await.map_err(Failure::new)??.len();
        match answer {
            Rescheduled::Moved(_) => {
                ensure_eq!(leased, 0, "after `Moved` to a later time the job is not leased")
            }
            Rescheduled::AlreadyRunning => {
                ensure_eq!(leased, 1, "after `AlreadyRunning` the job is leased")
            }
            other => {
                return Err(Failure::new(format_args!(
                    "either the reschedule or the claim succeeds, so the answer is not {other:?}"
                )));
            }
        }
    }
    Ok(())
}
