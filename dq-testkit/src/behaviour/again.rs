//! Next steps: a settlement gives a job another payload and due time.

use bytes::Bytes;
use dq_core::{Cancelled, Due, Headers, OnConflict, Rescheduled, Scheduled, Settled, Verdict};

use super::client::Counts;
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore, ensure_payload, key};
use super::trial::topic;

topic! { "again":
    next_step_is_the_same_job_with_another_payload [again],
    next_step_starts_with_new_counts [again],
    next_step_waits_for_its_due_time [again],
    payload_of_a_next_step_is_unchanged [again],
    key_is_held_between_steps [again, keys],
    calls_between_steps_find_a_waiting_job [again],
    all_steps_count_as_one_job [again, totals],
}

fn again(due: impl Into<Due>, payload: &'static str) -> Verdict {
    Verdict::Again { due: due.into(), payload: Bytes::from_static(payload.as_bytes()) }
}

async fn next_step_is_the_same_job_with_another_payload(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let headers = Headers::from_iter([(Headers::TRACEPARENT, "00-1-2-01")]);
    let mut new = store.job(&queue, Due::NOW).headers(headers).max_attempts(9);
    new.key = store.capabilities().keys.then(|| key("k"));
    let first = store.start_job(new).await?;
    store.settle_accepted(&first, again(Due::NOW, "second step")).await?;
    let second = store.lease_one(&queue).await?;
    let mut wanted = first.job;
    wanted.payload = Bytes::from_static(b"second step");
    wanted.due = second.job.due;
    wanted.first_due = second.job.due;
    wanted.deliveries = 2;
    ensure_eq!(second.job, wanted, "only payload, due time and deliveries have changed");
    ensure!(second.token > first.token, "the token grows from step to step");
    store.settle_accepted(&second, Verdict::Done).await?;
    store.expect_counts(&queue, Counts::NONE, "after the last step").await
}

async fn next_step_starts_with_new_counts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    for _ in 0..2 {
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    }
    store.lose_lease(&queue).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!((leased.job.attempts, leased.job.losses), (2, 1), "the counts of the first step");
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    if store.capabilities().reasons {
        let view = store.get_existing(&queue, id).await?;
        ensure_eq!(view.last_error, None, "a new step has not failed");
    }
    let job = store.lose_lease(&queue).await?.job;
    ensure_eq!((job.attempts, job.losses), (0, 0), "a new step has no failed attempts and losses");
    ensure_eq!(job.deliveries, 5, "`deliveries` counts all leases of the job");
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!(job.payload, "next", "the step that was interrupted is repeated, not the first");
    ensure_eq!((job.losses, job.deliveries), (1, 6), "the expiry is counted");
    Ok(())
}

async fn next_step_waits_for_its_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let leased = store.start(&queue).await?;
    let before = store.now().await?;
    store.settle_accepted(&leased, again(SOON, "next")).await?;
    let after = store.now().await?;
    let due = store.stats(&queue).await?.next_due.unwrap_or_default();
    ensure!(
        before + SOON <= due && due <= after + SOON,
        "a delay is relative to the store's clock: {due} is not {SOON:?} after {before} to {after}"
    );
    store.wait_until(due).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.due, due, "the job has the due time of its step");
    let at = store.now().await? + LATER;
    store.settle_accepted(&leased, again(at, "last")).await?;
    store.expect_empty_claim(&queue, "the next step is due in an hour").await?;
    ensure_eq!(store.stats(&queue).await?.next_due, Some(at), "an absolute due time is unchanged");
    Ok(())
}

async fn payload_of_a_next_step_is_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let large: Vec<u8> = (0..1024 * 1024_u32).map(|n| (n.wrapping_mul(31) >> 7) as u8).collect();
    for payload in [Bytes::from(large), Bytes::new(), Bytes::from_static(b"\0\xff\xfe{not json")] {
        let leased = store.lease_one(&queue).await?;
        let verdict = Verdict::Again { due: Due::NOW, payload: payload.clone() };
        let answer = store.settle(leased.lease(), verdict).await?;
        ensure_eq!(answer, Settled::Accepted, "a step with a payload of {} bytes", payload.len());
        let leased = store.lease_one(&queue).await?;
        ensure_payload(&leased, &payload)?;
        store.settle_accepted(&leased, Verdict::Snooze(Due::NOW)).await?;
    }
    Ok(())
}

async fn key_is_held_between_steps(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let leased = store.lease_one(&queue).await?;
    let other = || store.keyed(&queue, Due::NOW, "k", OnConflict::Keep);
    ensure_eq!(
        store.schedule(other()).await?,
        Scheduled::AlreadyRunning(receipt),
        "the job holds its key during a step"
    );
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    ensure_matches!(
        store.schedule(other()).await?,
        Scheduled::Kept(kept) if kept.id == receipt.id,
        "the job holds its key between two steps"
    );
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(LATER, "last")).await?;
    let new = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    let replaced = store.schedule(new.clone()).await?;
    ensure_matches!(replaced, Scheduled::Replaced(_), "a job that waits for its next step");
    ensure_eq!(store.lease_one(&queue).await?.job.id, new.id, "the new job runs");
    store.expect_counts(&queue, Counts::running(1), "after the replacement").await
}

async fn calls_between_steps_find_a_waiting_job(store: TrialStore) -> TrialResult {
    let can = store.capabilities();
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    store.run_job(new.clone(), again(LATER, "next")).await?;
    // As if the first answer was lost.
    store.create(new.clone()).await?;
    store.expect_counts(&queue, Counts::scheduled(1), "after a repeated call").await?;
    if can.reschedule {
        let moved = store.reschedule(&queue, new.id, Due::NOW).await?;
        ensure_matches!(moved, Rescheduled::Moved(_), "a job that waits for its next step");
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(leased.job.payload, "next", "the next step runs");
        store.settle_accepted(&leased, again(Due::NOW, "last")).await?;
    }
    if can.cancel {
        let answer = store.cancel(&queue, new.id).await?;
        ensure_eq!(answer, Cancelled::Cancelled, "between two steps");
        store.expect_counts(&queue, Counts::NONE, "after the cancel").await?;
    }
    Ok(())
}

async fn all_steps_count_as_one_job(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    for _ in 0..3 {
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    }
    let totals = store.stats(&queue).await?.totals.unwrap_or_default();
    ensure_eq!((totals.created, totals.departed()), (1, 0), "the job has not left the store");
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let totals = store.stats(&queue).await?.totals.unwrap_or_default();
    ensure_eq!((totals.created, totals.done), (1, 1), "the job is done once");
    Ok(())
}
