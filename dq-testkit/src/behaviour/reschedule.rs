//! Reschedules: the new due time replaces the old one.

use dq_core::{Due, JobRef, OnConflict, Reschedule, Rescheduled, Verdict};

use super::client::{Counts, dead, race_with_claim, want};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, ShortLease, TrialStore, key};
use super::trial::topic;

topic! { "reschedule":
    earlier_due_time_takes_effect [reschedule],
    later_due_time_takes_effect [reschedule],
    job_is_rescheduled_by_its_key [reschedule, keys],
    rescheduled_job_is_otherwise_unchanged [reschedule],
    running_job_is_not_rescheduled [reschedule],
    unknown_and_ended_jobs_are_not_found [reschedule],
    answers_are_in_request_order [reschedule],
    reschedule_races_with_claim [reschedule],
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
    for due in [Due::After(SOON), Due::NOW] {
        let queue = store.queue();
        let first = store.create(store.job(&queue, due)).await?;
        let before = store.now().await?;
        let moved = store.reschedule(&queue, first.id, LATER).await?;
        let after = store.now().await?;
        ensure_matches!(
            moved,
            Rescheduled::Moved(receipt) if (before + LATER..=after + LATER).contains(&receipt.due),
            "a delay is relative to the store's clock, not to the old due time"
        );
        store.wait_until(first.due + SOON).await?;
        store.expect_empty_claim(&queue, "the old due time does not apply").await?;
        store.expect_counts(&queue, Counts::scheduled(1), "after it was moved").await?;
        let later = store.stats(&queue).await?.next_due;
        ensure!(later >= Some(before + LATER), "`next_due` is the new due time: {later:?}");
    }
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
    store.lose_job(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::retry(LATER.into(), "a reason")).await?;
    let due = store.now().await? - SOON;
    let moved = store.reschedule(&queue, leased.job.id, due).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a job that waits for its retry is moved");
    let again = store.lease_one(&queue).await?.job;
    let mut wanted = leased.job.clone();
    (wanted.due, wanted.first_due) = (due, due);
    (wanted.attempts, wanted.deliveries, wanted.losses) = (1, 3, 0);
    ensure_eq!(again, wanted, "id, payload and counts are unchanged");
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

async fn unknown_and_ended_jobs_are_not_found(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let unknown = store.job(&queue, Due::NOW).id;
    let answer = store.reschedule(&queue, unknown, Due::NOW).await?;
    ensure_eq!(answer, Rescheduled::NotFound, "an unknown queue");
    let done = store.run_job(store.job(&queue, Due::NOW), Verdict::Done).await?.id;
    let dead = store.run_job(store.job(&queue, Due::NOW), dead("no")).await?.id;
    let elsewhere = store.create(store.job(&other, LATER)).await?.id;
    for (id, what) in [
        (unknown, "an unknown job"),
        (done, "a job that is done"),
        (dead, "a dead job"),
        (elsewhere, "a job of another queue"),
    ] {
        let answer = store.reschedule(&queue, id, Due::NOW).await?;
        ensure_eq!(answer, Rescheduled::NotFound, "{what}");
    }
    for queue in [queue, other] {
        store.expect_empty_claim(&queue, "no job was created or moved").await?;
    }
    Ok(())
}

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let running = store.start(&queue).await?.job.id;
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
    Ok(())
}

async fn reschedule_races_with_claim(store: TrialStore) -> TrialResult {
    let [caller, runner] = store.two_clients().await?;
    for _ in 0..20 {
        let queue = store.queue();
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let (caller, in_queue) = (caller.clone(), queue.clone());
        let call = async move { caller.reschedule(&in_queue, id, LATER).await };
        let (answer, leased) = race_with_claim(&runner, &queue, call).await?;
        let as_expected = match answer {
            Rescheduled::Moved(_) => leased.is_empty(),
            Rescheduled::AlreadyRunning => leased == [id],
            _ => false,
        };
        ensure!(as_expected, "either the reschedule or the claim succeeds: {answer:?}, {leased:?}");
    }
    Ok(())
}
