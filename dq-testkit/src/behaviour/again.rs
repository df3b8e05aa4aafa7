//! Next steps: a settlement gives a job another payload and due time.

use bytes::Bytes;
use dq_core::{
    Cancelled, Due, Headers, OnConflict, Rescheduled, Scheduled, Settled, Settlement, Verdict,
};

use super::client::{Counts, LAPSING_LEASE, dead};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore, ensure_payload, key};
use super::trial::topic;

topic! { "again":
    next_step_is_the_same_job_with_another_payload [Again],
    next_step_starts_with_new_counts [Again],
    next_step_waits_for_its_due_time [Again],
    payload_of_a_next_step_is_unchanged [Again],
    error_of_an_earlier_step_is_cleared [Again, Reasons],
    key_is_held_between_steps [Again, Keys],
    stale_lease_starts_no_next_step [Again],
    cancel_between_steps_is_binding [Again, Cancel],
    next_step_can_be_rescheduled [Again, Reschedule],
    lapsed_step_is_redelivered_with_its_payload [Again],
    steps_survive_a_crash [Again, Durable],
    step_that_dies_keeps_its_payload [Again, Browse, DeadLetters],
    all_steps_count_as_one_job [Again, Totals],
    next_steps_in_a_batch [Again],
    repeated_schedule_between_steps_changes_nothing [Again],
}

fn again(due: impl Into<Due>, payload: &'static str) -> Verdict {
    Verdict::Again { due: due.into(), payload: Bytes::from_static(payload.as_bytes()) }
}

async fn next_step_is_the_same_job_with_another_payload(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let headers = Headers::from_iter([(Headers::TRACEPARENT, "00-1-2-01")]);
    let mut new = store.job(&queue, Due::NOW).headers(headers).max_attempts(9);
    new.key = store.capabilities().keys.then(|| key("k"));
    store.create(new).await?;
    let first = store.lease_one(&queue).await?;
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
    store.create(store.job(&queue, Due::NOW)).await?;
    for _ in 0..2 {
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    }
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!((leased.job.attempts, leased.job.losses), (2, 1), "the counts of the first step");
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.attempts, job.losses), (0, 0), "a new step has no failed attempts and losses");
    ensure_eq!(job.deliveries, 5, "`deliveries` counts all leases of the job");
    Ok(())
}

async fn next_step_waits_for_its_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
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

async fn error_of_an_earlier_step_is_cleared(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.last_error, None, "a new step has not failed");
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

async fn stale_lease_starts_no_next_step(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    store.create(new.clone()).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let answer = store.settle(lost.lease(), again(LATER, "late")).await?;
    ensure_eq!(answer, Settled::Stale, "the lease has lapsed");
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.payload, new.payload, "a stale settlement changes nothing");
    let answer = store.settle(lost.lease(), again(LATER, "late")).await?;
    ensure_eq!(answer, Settled::Stale, "the job has another lease");
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    let answer = store.settle(leased.lease(), again(LATER, "twice")).await?;
    ensure_eq!(answer, Settled::Stale, "a lease is settled once");
    ensure_eq!(store.lease_one(&queue).await?.job.payload, "next", "the first verdict counts");
    Ok(())
}

async fn cancel_between_steps_is_binding(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(store.cancel(&queue, id).await?, Cancelled::AlreadyRunning, "during a step");
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    ensure_eq!(store.cancel(&queue, id).await?, Cancelled::Cancelled, "between two steps");
    store.expect_empty_claim(&queue, "the job was cancelled between two steps").await?;
    store.expect_counts(&queue, Counts::NONE, "after the cancel").await
}

async fn next_step_can_be_rescheduled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(LATER, "next")).await?;
    let moved = store.reschedule(&queue, id, Due::NOW).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "a job that waits for its next step");
    ensure_eq!(store.lease_one(&queue).await?.job.payload, "next", "the next step runs");
    Ok(())
}

async fn lapsed_step_is_redelivered_with_its_payload(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!(job.payload, "next", "the step that was interrupted is repeated, not the first");
    ensure_eq!((job.losses, job.deliveries), (1, 3), "the lapse is counted");
    Ok(())
}

async fn steps_survive_a_crash(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let key = store.capabilities().keys.then(|| key("k"));
    let mut new = store.job(&queue, Due::NOW);
    new.key = key;
    store.create(new.clone()).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(Due::NOW, "second")).await?;
    let store = store.crash().await?;
    store.expect_counts(&queue, Counts::ready(1), "after a crash between two steps").await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(
        (leased.job.id, leased.job.payload.clone(), leased.job.key.clone()),
        (new.id, Bytes::from_static(b"second"), new.key),
        "the next step survives a crash"
    );
    let store = store.crash().await?;
    // The lease survives a process crash.
    store.settle_accepted(&leased, again(Due::NOW, "third")).await?;
    ensure_eq!(store.lease_one(&queue).await?.job.payload, "third", "the step after a crash");
    Ok(())
}

async fn step_that_dies_keeps_its_payload(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, dead("no")).await?;
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.job.payload, "next", "a dead job has the payload of the step that died");
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

async fn next_steps_in_a_batch(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..4).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let leased = store.lease(&queue, 4).await?;
    let verdicts =
        [again(Due::NOW, "a"), Verdict::Done, again(LATER, "b"), Verdict::Snooze(LATER.into())];
    let settlements: Vec<_> = leased
        .iter()
        .zip(verdicts)
        .map(|(leased, verdict)| Settlement::new(leased.lease(), verdict))
        .collect();
    let answers = store.backend().settle(&settlements).await?;
    ensure_eq!(answers, [Settled::Accepted; 4], "verdicts of several kinds in one call");
    let counts = Counts { ready: 1, ..Counts::scheduled(2) };
    store.expect_counts(&queue, counts, "after verdicts of several kinds").await?;
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!((job.id, job.payload), (leased[0].job.id, "a".into()), "the step that is due");
    Ok(())
}

async fn repeated_schedule_between_steps_changes_nothing(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.job(&queue, Due::NOW);
    store.create(new.clone()).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, again(Due::NOW, "next")).await?;
    // As if the first answer was lost.
    store.create(new).await?;
    store.expect_counts(&queue, Counts::ready(1), "after a repeated call").await?;
    ensure_eq!(store.lease_one(&queue).await?.job.payload, "next", "the job goes on");
    Ok(())
}
