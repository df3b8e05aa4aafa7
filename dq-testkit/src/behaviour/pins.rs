//! Pins: [`NewJob::remember`] keeps an id taken for a while after the job's end.

use std::time::Duration;

use dq_core::{
    Cancelled, Due, JobState, NewJob, OnConflict, Operation, QueueName, Receipt, Scheduled, Verdict,
};

use super::client::{Counts, dead};
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{BRIEF, LATER, Limit, SOON, TrialStore};
use super::trial::topic;

topic! { "pins":
    done_job_pins_its_id [History],
    skipped_job_pins_its_id [History],
    cancelled_job_pins_its_id [History, Cancel],
    replaced_job_pins_its_id [History, Keys],
    removed_job_pins_its_id [History, DeadLetters],
    purged_job_pins_its_id [History],
    live_and_dead_jobs_are_not_pinned [History, DeadLetters],
    job_that_is_not_remembered_pins_nothing [History],
    pin_ends_after_its_time [History],
    pin_lasts_from_the_end_of_the_job [History, VirtualTime],
    pin_does_not_depend_on_the_history_limits [History],
    pin_outlasts_the_history [History],
    pin_is_kept_through_a_retry [History],
    pin_is_kept_through_steps [History, Again],
    pin_is_kept_through_a_replay [History, DeadLetters],
    pinned_id_does_not_change_a_job_with_its_key [History, Keys],
    pinned_ids_among_others_in_one_call [History],
    id_can_be_pinned_again [History],
    pins_survive_a_crash [History, Durable],
    pins_bind_every_process [History, Shared],
    thousands_of_ids_are_pinned [History],
}

/// A history also keeps ids taken, so it is off.
fn queue(store: &TrialStore) -> QueueName {
    store.queue_with(Limit::Off)
}

fn remembered(store: &TrialStore, queue: &QueueName) -> NewJob {
    store.job(queue, Due::NOW).remember(LATER)
}

async fn expect_pinned(store: &TrialStore, job: &NewJob, receipt: Receipt) -> TrialResult {
    let before = store.stats(&job.queue).await?;
    // A later call may differ in everything except the id.
    let mut other = store.job(&job.queue, LATER);
    other.id = job.id;
    for again in [job.clone(), other] {
        ensure_eq!(
            store.schedule(again).await?,
            Scheduled::Ended(receipt),
            "the id is pinned, and the receipt is that of the ended job"
        );
    }
    ensure_eq!(store.stats(&job.queue).await?, before, "nothing is stored under a pinned id");
    Ok(())
}

async fn run_job(store: &TrialStore, job: &NewJob, verdict: Verdict) -> TrialResult<Receipt> {
    let receipt = store.create(job.clone()).await?;
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, verdict).await?;
    Ok(receipt)
}

async fn done_job_pins_its_id(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    expect_pinned(&store, &job, receipt).await?;
    store.expect_empty_claim(&job.queue, "the id is pinned").await
}

async fn skipped_job_pins_its_id(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = run_job(&store, &job, Verdict::skip("a reason")).await?;
    expect_pinned(&store, &job, receipt).await
}

async fn cancelled_job_pins_its_id(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store)).due(LATER);
    let receipt = store.create(job.clone()).await?;
    ensure_eq!(store.cancel(&job.queue, job.id).await?, Cancelled::Cancelled, "a waiting job");
    expect_pinned(&store, &job, receipt).await
}

async fn replaced_job_pins_its_id(store: TrialStore) -> TrialResult {
    let queue = queue(&store);
    let job = store.keyed(&queue, LATER, "k", OnConflict::Replace).remember(LATER);
    let receipt = store.create(job.clone()).await?;
    let new = store.keyed(&queue, LATER, "k", OnConflict::Replace);
    ensure_matches!(store.schedule(new).await?, Scheduled::Replaced(_), "a waiting job");
    // The repeated call does not replace the new job.
    expect_pinned(&store, &job, receipt).await?;
    store.expect_counts(&queue, Counts::scheduled(1), "after the new job was stored").await
}

async fn removed_job_pins_its_id(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = run_job(&store, &job, dead("no")).await?;
    let jobs = [job.id];
    let removed = store.operate(Operation::Remove { queue: &job.queue, jobs: &jobs }).await?;
    ensure_eq!(removed, 1, "one dead job is removed");
    expect_pinned(&store, &job, receipt).await
}

async fn purged_job_pins_its_id(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = store.create(job.clone()).await?;
    ensure_eq!(store.operate(Operation::Purge { queue: &job.queue }).await?, 1, "a waiting job");
    expect_pinned(&store, &job, receipt).await
}

async fn live_and_dead_jobs_are_not_pinned(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = store.create(job.clone()).await?;
    let created = Scheduled::Created(receipt);
    ensure_eq!(store.schedule(job.clone()).await?, created, "a waiting job has not ended");
    let leased = store.lease_one(&job.queue).await?;
    ensure_eq!(store.schedule(job.clone()).await?, created, "a running job has not ended");
    store.settle_accepted(&leased, dead("no")).await?;
    ensure_eq!(store.schedule(job.clone()).await?, created, "a dead job has not ended");
    store.expect_counts(&job.queue, Counts::dead(1), "after the repeated calls").await
}

async fn job_that_is_not_remembered_pins_nothing(store: TrialStore) -> TrialResult {
    let job = store.job(&queue(&store), Due::NOW);
    run_job(&store, &job, Verdict::Done).await?;
    run_job(&store, &job, Verdict::Done).await?;
    store.create(job.remember(LATER)).await?;
    Ok(())
}

async fn pin_ends_after_its_time(store: TrialStore) -> TrialResult {
    let job = store.job(&queue(&store), Due::NOW).remember(SOON);
    run_job(&store, &job, Verdict::Done).await?;
    store.wait_for(SOON).await?;
    store.create(job.clone()).await?;
    ensure_eq!(store.lease_one(&job.queue).await?.job.id, job.id, "the pin has ended");
    Ok(())
}

async fn pin_lasts_from_the_end_of_the_job(store: TrialStore) -> TrialResult {
    let job = store.job(&queue(&store), LATER).remember(LATER);
    let receipt = store.create(job.clone()).await?;
    store.wait_until(receipt.due).await?;
    let leased = store.lease_one(&job.queue).await?;
    store.wait_for(SOON).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let end = store.now().await?;
    store.wait_until(end + LATER - Duration::from_millis(1)).await?;
    expect_pinned(&store, &job, receipt).await?;
    store.wait_until(end + LATER).await?;
    store.create(job).await?;
    Ok(())
}

async fn pin_does_not_depend_on_the_history_limits(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    expect_pinned(&store, &job, receipt).await?;
    ensure_eq!(store.get(&job.queue, job.id).await?, None, "a pin is not a history");

    let queue = store.queue_with(Limit::Few);
    let job = remembered(&store, &queue);
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    for _ in 0..10 {
        run_job(&store, &store.job(&queue, Due::NOW), Verdict::Done).await?;
    }
    ensure_eq!(store.get(&queue, job.id).await?, None, "other jobs ended later");
    expect_pinned(&store, &job, receipt).await
}

async fn pin_outlasts_the_history(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &store.queue_with(Limit::Brief));
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    store.wait_for(BRIEF + Duration::from_millis(1)).await?;
    ensure_eq!(store.get(&job.queue, job.id).await?, None, "the job ended too long ago");
    expect_pinned(&store, &job, receipt).await
}

async fn pin_is_kept_through_a_retry(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let receipt = run_job(&store, &job, Verdict::Release { started: true }).await?;
    let retries = [Verdict::retry(Due::At(receipt.due), "no"), Verdict::Snooze(receipt.due.into())];
    for verdict in retries {
        let leased = store.lease_one(&job.queue).await?;
        store.settle_accepted(&leased, verdict).await?;
    }
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    expect_pinned(&store, &job, receipt).await
}

async fn pin_is_kept_through_steps(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let due = store.now().await?;
    let payload = "next".into();
    let first = run_job(&store, &job, Verdict::Again { due: due.into(), payload }).await?;
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    // The last step's due time.
    expect_pinned(&store, &job, Receipt { due, ..first }).await
}

async fn pin_is_kept_through_a_replay(store: TrialStore) -> TrialResult {
    let job = remembered(&store, &queue(&store));
    let first = run_job(&store, &job, dead("no")).await?;
    let (due, jobs) = (store.now().await?, [job.id]);
    let replay = Operation::Replay { queue: &job.queue, jobs: &jobs, due: due.into() };
    ensure_eq!(store.operate(replay).await?, 1, "one dead job is replayed");
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    expect_pinned(&store, &job, Receipt { due, ..first }).await
}

async fn pinned_id_does_not_change_a_job_with_its_key(store: TrialStore) -> TrialResult {
    let queue = queue(&store);
    let job = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace).remember(LATER);
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    let other = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    expect_pinned(&store, &job, receipt).await?;
    let kept = store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(kept, Scheduled::Kept(other), "the other job has the key still");
    Ok(())
}

async fn pinned_ids_among_others_in_one_call(store: TrialStore) -> TrialResult {
    let queue = queue(&store);
    let (first, second) = (remembered(&store, &queue), remembered(&store, &queue));
    let first_receipt = run_job(&store, &first, Verdict::Done).await?;
    let second_receipt = run_job(&store, &second, Verdict::Done).await?;
    let (new, other) = (store.job(&queue, LATER), store.job(&queue, LATER));
    let wanted = [new.id, other.id];
    let jobs = vec![new, second.clone(), first.clone(), second, other];
    let answers = store.schedule_all(jobs).await?;
    ensure_matches!(
        answers[..],
        [
            Scheduled::Created(new),
            Scheduled::Ended(b),
            Scheduled::Ended(a),
            Scheduled::Ended(c),
            Scheduled::Created(other),
        ] if [new.id, other.id] == wanted
            && *a == first_receipt && *b == second_receipt && *c == second_receipt,
        "pinned ids do not affect the other jobs of a call"
    );
    store.expect_counts(&queue, Counts::scheduled(2), "after a call with pinned ids").await
}

async fn id_can_be_pinned_again(store: TrialStore) -> TrialResult {
    let job = store.job(&queue(&store), Due::NOW);
    run_job(&store, &job.clone().remember(SOON), Verdict::Done).await?;
    store.wait_for(SOON).await?;
    let job = job.remember(LATER);
    let receipt = run_job(&store, &job, Verdict::skip("a reason")).await?;
    store.wait_for(SOON).await?;
    expect_pinned(&store, &job, receipt).await
}

async fn pins_survive_a_crash(store: TrialStore) -> TrialResult {
    let queue = queue(&store);
    let (done, waiting) = (remembered(&store, &queue), remembered(&store, &queue));
    let done_receipt = run_job(&store, &done, Verdict::Done).await?;
    let waiting_receipt = store.create(waiting.clone()).await?;
    let store = store.crash().await?;
    expect_pinned(&store, &done, done_receipt).await?;
    // `remember` survives, too.
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    expect_pinned(&store, &waiting, waiting_receipt).await
}

async fn pins_bind_every_process(store: TrialStore) -> TrialResult {
    let other = store.second_client().await?;
    let job = remembered(&store, &queue(&store));
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    ensure_eq!(other.schedule(job).await?, Scheduled::Ended(receipt), "the id is pinned");
    let job = remembered(&store, &queue(&store));
    let receipt = other.create(job.clone()).await?;
    let leased = store.lease_one(&job.queue).await?;
    other.settle_accepted(&leased, Verdict::Done).await?;
    expect_pinned(&store, &job, receipt).await
}

async fn thousands_of_ids_are_pinned(store: TrialStore) -> TrialResult {
    let queue = queue(&store);
    let jobs: Vec<NewJob> = (0..2_000).map(|_| remembered(&store, &queue)).collect();
    store.schedule_all(jobs.clone()).await?;
    store.settle_all_done(&store.lease(&queue, 2_000).await?).await?;
    let answers = store.schedule_all(jobs.clone()).await?;
    for (job, answer) in jobs.iter().zip(answers) {
        ensure_matches!(answer, Scheduled::Ended(receipt) if receipt.id == job.id, "a pinned id");
    }
    store.expect_counts(&queue, Counts::NONE, "after a call with pinned ids").await?;
    ensure_eq!(store.list(&queue, JobState::Ready, 1).await?, [], "no job is stored");
    Ok(())
}
