//! Ids in the history: an ended job is not stored again while the history has it.

use std::time::Duration;

use dq_core::{
    Cancelled, Due, JobState, NewJob, OnConflict, OnRunning, Operation, QueueName, Receipt,
    Scheduled, Verdict,
};

use super::client::{Counts, dead};
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{BRIEF, FEW, LATER, Limit, SOON, TrialStore};
use super::trial::topic;

topic! { "ids":
    done_job_is_not_stored_again [History],
    skipped_job_is_not_stored_again [History],
    cancelled_job_is_not_stored_again [History, Cancel],
    replaced_job_does_not_replace_its_successor [History, Keys],
    removed_job_is_not_stored_again [History, DeadLetters],
    purged_job_is_not_stored_again [History],
    live_and_dead_jobs_have_not_ended [History, DeadLetters],
    replayed_job_is_not_stored_again_once_it_has_ended [History, DeadLetters],
    receipt_has_the_due_time_of_the_last_step [History, Again],
    ended_id_leaves_the_job_with_its_key_alone [History, Keys],
    ended_id_detaches_no_job [History, Keys, Detach],
    ended_ids_among_others_in_one_call [History],
    job_that_is_replaced_in_the_call_has_ended [History, Keys],
    repeated_call_of_jobs_with_one_key_changes_nothing [History, Keys],
    history_counts_when_a_pin_is_over [History],
    forgotten_ids_are_free [History],
    ids_are_free_after_the_maximum_age [History],
    age_of_an_id_is_exact_to_the_millisecond [History, VirtualTime],
    ids_are_free_without_a_history [History],
    ended_ids_survive_a_crash [History, Durable],
    ended_ids_bind_every_process [History, Shared],
    hundreds_of_ids_have_ended [History],
}

async fn expect_ended(store: &TrialStore, job: &NewJob, receipt: Receipt) -> TrialResult {
    let before = store.stats(&job.queue).await?;
    // A later call may differ in everything except id and key.
    let mut other = store.job(&job.queue, LATER);
    (other.id, other.key) = (job.id, job.key.clone());
    for again in [job.clone(), other] {
        ensure_eq!(
            store.schedule(again).await?,
            Scheduled::Ended(receipt),
            "the history has the job, and the receipt is that of the ended job"
        );
    }
    ensure_eq!(store.stats(&job.queue).await?, before, "nothing is stored under an ended id");
    Ok(())
}

async fn run_job(store: &TrialStore, job: &NewJob, verdict: Verdict) -> TrialResult<Receipt> {
    let receipt = store.create(job.clone()).await?;
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, verdict).await?;
    Ok(receipt)
}

fn job(store: &TrialStore, queue: &QueueName) -> NewJob {
    store.job(queue, Due::NOW)
}

async fn done_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    expect_ended(&store, &job, receipt).await?;
    store.expect_empty_claim(&job.queue, "the job has ended").await
}

async fn skipped_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let receipt = run_job(&store, &job, Verdict::skip("a reason")).await?;
    expect_ended(&store, &job, receipt).await
}

async fn cancelled_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue(), LATER);
    let receipt = store.create(job.clone()).await?;
    ensure_eq!(store.cancel(&job.queue, job.id).await?, Cancelled::Cancelled, "a waiting job");
    expect_ended(&store, &job, receipt).await
}

async fn replaced_job_does_not_replace_its_successor(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.keyed(&queue, LATER, "k", OnConflict::Replace);
    let receipt = store.create(job.clone()).await?;
    let new = store.keyed(&queue, LATER, "k", OnConflict::Replace);
    ensure_matches!(store.schedule(new.clone()).await?, Scheduled::Replaced(_), "a waiting job");
    // Repeats the replaced job's call.
    expect_ended(&store, &job, receipt).await?;
    store.get_existing(&queue, new.id).await?;
    store.expect_counts(&queue, Counts::scheduled(1), "after the new job was stored").await
}

async fn removed_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let receipt = run_job(&store, &job, dead("no")).await?;
    let jobs = [job.id];
    let removed = store.operate(Operation::Remove { queue: &job.queue, jobs: &jobs }).await?;
    ensure_eq!(removed, 1, "one dead job is removed");
    expect_ended(&store, &job, receipt).await
}

async fn purged_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let receipt = store.create(job.clone()).await?;
    ensure_eq!(store.operate(Operation::Purge { queue: &job.queue }).await?, 1, "a waiting job");
    expect_ended(&store, &job, receipt).await
}

async fn live_and_dead_jobs_have_not_ended(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let receipt = store.create(job.clone()).await?;
    let created = Scheduled::Created(receipt);
    ensure_eq!(store.schedule(job.clone()).await?, created, "a waiting job has not ended");
    let leased = store.lease_one(&job.queue).await?;
    ensure_eq!(store.schedule(job.clone()).await?, created, "a running job has not ended");
    store.settle_accepted(&leased, dead("no")).await?;
    ensure_eq!(store.schedule(job.clone()).await?, created, "a dead job has not ended");
    store.expect_counts(&job.queue, Counts::dead(1), "after the repeated calls").await
}

async fn replayed_job_is_not_stored_again_once_it_has_ended(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let first = run_job(&store, &job, dead("no")).await?;
    let (due, jobs) = (store.now().await?, [job.id]);
    let replay = Operation::Replay { queue: &job.queue, jobs: &jobs, due: due.into() };
    ensure_eq!(store.operate(replay).await?, 1, "one dead job is replayed");
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    expect_ended(&store, &job, Receipt { due, ..first }).await
}

async fn receipt_has_the_due_time_of_the_last_step(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let due = store.now().await?;
    let again = Verdict::Again { due: due.into(), payload: "next".into() };
    let first = run_job(&store, &job, again).await?;
    let leased = store.lease_one(&job.queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    expect_ended(&store, &job, Receipt { due, ..first }).await
}

async fn ended_id_leaves_the_job_with_its_key_alone(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    let other = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    expect_ended(&store, &job, receipt).await?;
    let kept = store.schedule(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(kept, Scheduled::Kept(other), "the other job has the key still");
    Ok(())
}

async fn ended_id_detaches_no_job(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let keyed = || store.keyed(&queue, Due::NOW, "k", OnConflict::Keep);
    let job = keyed().on_running(OnRunning::Detach);
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    let running = store.create(keyed()).await?;
    store.lease_one(&queue).await?;
    expect_ended(&store, &job, receipt).await?;
    let answer = store.schedule(keyed()).await?;
    ensure_eq!(answer, Scheduled::AlreadyRunning(running), "the running job has the key still");
    Ok(())
}

async fn ended_ids_among_others_in_one_call(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let (first, second) = (job(&store, &queue), job(&store, &queue));
    let first_receipt = run_job(&store, &first, Verdict::Done).await?;
    let second_receipt = run_job(&store, &second, Verdict::Done).await?;
    let (new, other) = (store.job(&queue, LATER), store.job(&queue, LATER));
    let wanted = [new.id, other.id];
    let jobs = vec![new, second.clone(), first, second, other];
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
        "ended ids do not affect the other jobs of a call"
    );
    store.expect_counts(&queue, Counts::scheduled(2), "after a call with ended ids").await
}

async fn job_that_is_replaced_in_the_call_has_ended(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let keyed = || store.keyed(&queue, LATER, "k", OnConflict::Replace);
    let (first, second) = (keyed(), keyed());
    let receipt = store.create(first.clone()).await?;
    let wanted = second.id;
    let answers = store.schedule_all(vec![second.clone(), first, second]).await?;
    ensure_matches!(
        answers[..],
        [Scheduled::Replaced(stored), Scheduled::Ended(ended), Scheduled::Created(again)]
            if stored.id == wanted && *ended == receipt && again == stored,
        "the second job replaces the first, which has ended then"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after the call").await
}

async fn repeated_call_of_jobs_with_one_key_changes_nothing(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let jobs = [0, 1].map(|_| store.keyed(&queue, LATER, "k", OnConflict::Replace));
    let ids = [jobs[0].id, jobs[1].id];
    store.schedule_all(jobs.to_vec()).await?;
    let answers = store.schedule_all(jobs.to_vec()).await?;
    ensure_matches!(
        answers[..],
        [Scheduled::Ended(first), Scheduled::Created(last)]
            if first.id == ids[0] && last.id == ids[1],
        "the first job has ended, replaced by the second"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after the repeated call").await
}

async fn history_counts_when_a_pin_is_over(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue()).remember(SOON);
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    store.wait_for(SOON).await?;
    expect_ended(&store, &job, receipt).await
}

async fn forgotten_ids_are_free(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Few);
    let forgotten = job(&store, &queue);
    run_job(&store, &forgotten, Verdict::Done).await?;
    let mut kept = Vec::new();
    for _ in 0..FEW {
        store.wait_for(Duration::from_millis(2)).await?;
        let job = job(&store, &queue);
        let receipt = run_job(&store, &job, Verdict::Done).await?;
        kept.push((job, receipt));
    }
    for (job, receipt) in &kept {
        expect_ended(&store, job, *receipt).await?;
    }
    // A store may know a few more ids than it lists.
    store.schedule_all((0..100).map(|_| job(&store, &queue)).collect()).await?;
    store.settle_all_done(&store.lease(&queue, 100).await?).await?;
    store.create(forgotten).await?;
    Ok(())
}

async fn ids_are_free_after_the_maximum_age(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue_with(Limit::Brief));
    run_job(&store, &job, Verdict::Done).await?;
    store.wait_for(BRIEF + Duration::from_millis(1)).await?;
    run_job(&store, &job, Verdict::Done).await?;
    Ok(())
}

async fn age_of_an_id_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue_with(Limit::Brief));
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    let (_, ended) = store.get_ended(&job.queue, job.id).await?;
    store.wait_until(ended.at + BRIEF).await?;
    expect_ended(&store, &job, receipt).await?;
    store.wait_until(ended.at + BRIEF + Duration::from_millis(1)).await?;
    store.create(job).await?;
    Ok(())
}

async fn ids_are_free_without_a_history(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue_with(Limit::Off));
    run_job(&store, &job, Verdict::Done).await?;
    store.create(job.clone()).await?;
    let view = store.get_existing(&job.queue, job.id).await?;
    ensure_eq!(view.state, JobState::Ready, "the job is stored again");
    let leased = store.lease_one(&job.queue).await?;
    ensure_eq!(leased.job.payload, job.payload, "the job runs again");
    Ok(())
}

async fn ended_ids_survive_a_crash(store: TrialStore) -> TrialResult {
    let job = job(&store, &store.queue());
    let receipt = run_job(&store, &job, Verdict::Done).await?;
    let store = store.crash().await?;
    expect_ended(&store, &job, receipt).await
}

async fn ended_ids_bind_every_process(store: TrialStore) -> TrialResult {
    let other = store.second_client().await?;
    let first = job(&store, &store.queue());
    let receipt = run_job(&store, &first, Verdict::Done).await?;
    ensure_eq!(other.schedule(first).await?, Scheduled::Ended(receipt), "the job has ended");
    let second = job(&store, &store.queue());
    let receipt = other.create(second.clone()).await?;
    let leased = store.lease_one(&second.queue).await?;
    other.settle_accepted(&leased, Verdict::Done).await?;
    expect_ended(&store, &second, receipt).await
}

async fn hundreds_of_ids_have_ended(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let jobs: Vec<NewJob> = (0..900).map(|_| job(&store, &queue)).collect();
    store.schedule_all(jobs.clone()).await?;
    store.settle_all_done(&store.lease(&queue, 900).await?).await?;
    let answers = store.schedule_all(jobs.clone()).await?;
    for (job, answer) in jobs.iter().zip(answers) {
        ensure_matches!(answer, Scheduled::Ended(receipt) if receipt.id == job.id, "an ended id");
    }
    store.expect_counts(&queue, Counts::NONE, "after a call with ended ids").await
}
