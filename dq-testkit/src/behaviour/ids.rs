//! Ids of ended jobs: a job is not stored again while the history has it, or while
//! [`NewJob::remember`] pins its id.

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
    ended_job_is_not_stored_again [history],
    replaced_job_does_not_replace_its_successor [history, keys],
    live_and_dead_jobs_have_not_ended [history],
    receipt_is_that_of_the_last_run [history],
    ended_id_leaves_the_job_with_its_key_alone [history, keys],
    ended_ids_among_others_in_one_call [history],
    forgotten_ids_are_free [history],
    ids_are_free_after_the_maximum_age [history],
    age_of_an_id_is_exact_to_the_millisecond [history, virtual_time],
    ids_are_free_without_a_history [history],
    pin_ends_after_its_time [history],
    pin_lasts_from_the_end_of_the_job [history, virtual_time],
    pin_does_not_depend_on_the_history [history],
    id_can_be_pinned_again [history],
    ended_ids_survive_a_crash [history, durable],
    ended_ids_bind_every_process [history, shared],
    thousands_of_ids_have_ended [history],
}

/// What keeps the id of an ended job taken.
#[derive(Debug, Clone, Copy)]
enum By {
    History,
    /// In a queue without a history.
    Pin,
}

const BOTH: [By; 2] = [By::History, By::Pin];

impl By {
    fn queue(self, store: &TrialStore) -> QueueName {
        match self {
            Self::History => store.queue(),
            Self::Pin => store.queue_with(Limit::Off),
        }
    }

    fn remembered(self, job: NewJob) -> NewJob {
        match self {
            Self::History => job,
            Self::Pin => job.remember(LATER),
        }
    }

    fn job(self, store: &TrialStore, due: impl Into<Due>) -> NewJob {
        self.remembered(store.job(&self.queue(store), due))
    }
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
            "the id is taken, and the receipt is that of the ended job"
        );
    }
    ensure_eq!(store.stats(&job.queue).await?, before, "nothing is stored under an ended id");
    Ok(())
}

async fn ended_job_is_not_stored_again(store: TrialStore) -> TrialResult {
    let can = store.capabilities();
    for by in BOTH {
        for verdict in [Verdict::Done, Verdict::skip("a reason")] {
            let job = by.job(&store, Due::NOW);
            let receipt = store.run_job(job.clone(), verdict).await?;
            expect_ended(&store, &job, receipt).await?;
            store.expect_empty_claim(&job.queue, "the job has ended").await?;
        }
        let job = by.job(&store, LATER);
        let receipt = store.create(job.clone()).await?;
        let purged = store.operate(Operation::Purge { queue: &job.queue }).await?;
        ensure_eq!(purged, 1, "a waiting job is purged");
        expect_ended(&store, &job, receipt).await?;
        if can.cancel {
            let job = by.job(&store, LATER);
            let receipt = store.create(job.clone()).await?;
            let answer = store.cancel(&job.queue, job.id).await?;
            ensure_eq!(answer, Cancelled::Cancelled, "a waiting job is cancelled");
            expect_ended(&store, &job, receipt).await?;
        }
        if can.dead_letters {
            let job = by.job(&store, Due::NOW);
            let receipt = store.run_job(job.clone(), dead("no")).await?;
            let remove = Operation::Remove { queue: &job.queue, jobs: &[job.id] };
            ensure_eq!(store.operate(remove).await?, 1, "a dead job is removed");
            expect_ended(&store, &job, receipt).await?;
        }
    }
    Ok(())
}

async fn replaced_job_does_not_replace_its_successor(store: TrialStore) -> TrialResult {
    for by in BOTH {
        let queue = by.queue(&store);
        let job = by.remembered(store.keyed(&queue, LATER, "k", OnConflict::Replace));
        let receipt = store.create(job.clone()).await?;
        let new = store.keyed(&queue, LATER, "k", OnConflict::Replace);
        let answer = store.schedule(new.clone()).await?;
        ensure_matches!(answer, Scheduled::Replaced(_), "a waiting job");
        // Repeats the replaced job's call.
        expect_ended(&store, &job, receipt).await?;
        ensure_eq!(store.schedule(new).await?.id(), answer.id(), "the new job is stored");
        store.expect_counts(&queue, Counts::scheduled(1), "after the new job was stored").await?;
    }
    Ok(())
}

async fn live_and_dead_jobs_have_not_ended(store: TrialStore) -> TrialResult {
    for by in BOTH {
        let job = by.job(&store, Due::NOW);
        let created = Scheduled::Created(store.create(job.clone()).await?);
        ensure_eq!(store.schedule(job.clone()).await?, created, "a waiting job has not ended");
        let leased = store.lease_one(&job.queue).await?;
        ensure_eq!(store.schedule(job.clone()).await?, created, "a running job has not ended");
        if store.capabilities().dead_letters {
            store.settle_accepted(&leased, dead("no")).await?;
            ensure_eq!(store.schedule(job.clone()).await?, created, "a dead job has not ended");
        }
    }
    Ok(())
}

async fn receipt_is_that_of_the_last_run(store: TrialStore) -> TrialResult {
    let can = store.capabilities();
    for by in BOTH {
        let due = store.now().await?;
        let mut verdicts = vec![
            Verdict::Release { started: true },
            Verdict::Snooze(due.into()),
            Verdict::retry(due.into(), "no"),
        ];
        if can.again {
            verdicts.push(Verdict::Again { due: due.into(), payload: "next".into() });
        }
        if can.dead_letters {
            verdicts.push(dead("no"));
        }
        let job = by.job(&store, due - SOON);
        let receipt = store.create(job.clone()).await?;
        for verdict in verdicts {
            let leased = store.lease_one(&job.queue).await?;
            store.settle_accepted(&leased, verdict.clone()).await?;
            if matches!(verdict, Verdict::Dead { .. }) {
                let jobs = [job.id];
                let replay = Operation::Replay { queue: &job.queue, jobs: &jobs, due: due.into() };
                ensure_eq!(store.operate(replay).await?, 1, "one dead job is replayed");
            }
        }
        let leased = store.lease_one(&job.queue).await?;
        store.settle_accepted(&leased, Verdict::Done).await?;
        expect_ended(&store, &job, Receipt { due, ..receipt }).await?;
    }
    Ok(())
}

async fn ended_id_leaves_the_job_with_its_key_alone(store: TrialStore) -> TrialResult {
    for by in BOTH {
        let queue = by.queue(&store);
        let keyed = |policy| store.keyed(&queue, Due::NOW, "k", policy);
        let mut job = by.remembered(keyed(OnConflict::Replace));
        if store.capabilities().detach {
            job = job.on_running(OnRunning::Detach);
        }
        let receipt = store.run_job(job.clone(), Verdict::Done).await?;
        let other = store.create(keyed(OnConflict::Keep)).await?;
        expect_ended(&store, &job, receipt).await?;
        let kept = store.schedule(keyed(OnConflict::Keep)).await?;
        ensure_eq!(kept, Scheduled::Kept(other), "the other job has the key still");
        store.lease_one(&queue).await?;
        expect_ended(&store, &job, receipt).await?;
        let kept = store.schedule(keyed(OnConflict::Keep)).await?;
        ensure_eq!(kept, Scheduled::AlreadyRunning(other), "the running job has the key still");
    }
    Ok(())
}

async fn ended_ids_among_others_in_one_call(store: TrialStore) -> TrialResult {
    for by in BOTH {
        let queue = by.queue(&store);
        let [first, second] = [0, 1].map(|_| by.remembered(store.job(&queue, Due::NOW)));
        let first_receipt = store.run_job(first.clone(), Verdict::Done).await?;
        let second_receipt = store.run_job(second.clone(), Verdict::Done).await?;
        let (new, other) = (store.job(&queue, LATER), store.job(&queue, LATER));
        let wanted = [new.id, other.id];
        let answers = store.schedule_all(vec![new, second.clone(), first, second, other]).await?;
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
        store.expect_counts(&queue, Counts::scheduled(2), "after a call with ended ids").await?;
    }
    Ok(())
}

async fn forgotten_ids_are_free(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Few);
    let forgotten = store.job(&queue, Due::NOW);
    store.run_job(forgotten.clone(), Verdict::Done).await?;
    let mut kept = Vec::new();
    for _ in 0..FEW {
        store.wait_for(Duration::from_millis(2)).await?;
        let job = store.job(&queue, Due::NOW);
        let receipt = store.run_job(job.clone(), Verdict::Done).await?;
        kept.push((job, receipt));
    }
    for (job, receipt) in &kept {
        expect_ended(&store, job, *receipt).await?;
    }
    // A store may know a few more ids than it lists.
    store.create_many(&queue, 100, Due::NOW).await?;
    store.settle_all_done(&store.lease(&queue, 100).await?).await?;
    store.create(forgotten).await?;
    Ok(())
}

async fn ids_are_free_after_the_maximum_age(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue_with(Limit::Brief), Due::NOW);
    store.run_job(job.clone(), Verdict::Done).await?;
    store.wait_for(BRIEF + Duration::from_millis(1)).await?;
    store.run_job(job, Verdict::Done).await?;
    Ok(())
}

async fn age_of_an_id_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue_with(Limit::Brief), Due::NOW);
    let receipt = store.run_job(job.clone(), Verdict::Done).await?;
    let (_, ended) = store.get_ended(&job.queue, job.id).await?;
    store.wait_until(ended.at + BRIEF).await?;
    expect_ended(&store, &job, receipt).await?;
    store.wait_until(ended.at + BRIEF + Duration::from_millis(1)).await?;
    store.create(job).await?;
    Ok(())
}

async fn ids_are_free_without_a_history(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue_with(Limit::Off), Due::NOW);
    for _ in 0..2 {
        let leased = store.start_job(job.clone()).await?;
        ensure_eq!(leased.job.payload, job.payload, "the job runs again");
        store.settle_accepted(&leased, Verdict::Done).await?;
    }
    store.create(job.remember(LATER)).await?;
    Ok(())
}

async fn pin_ends_after_its_time(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue_with(Limit::Off), Due::NOW).remember(SOON);
    store.run_job(job.clone(), Verdict::Done).await?;
    store.wait_for(SOON).await?;
    let leased = store.start_job(job.clone()).await?;
    ensure_eq!(leased.job.id, job.id, "the pin has ended");

    let job = store.job(&store.queue(), Due::NOW).remember(SOON);
    let receipt = store.run_job(job.clone(), Verdict::Done).await?;
    store.wait_for(SOON).await?;
    // The history still has it.
    expect_ended(&store, &job, receipt).await
}

async fn pin_lasts_from_the_end_of_the_job(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue_with(Limit::Off), LATER).remember(LATER);
    let receipt = store.create(job.clone()).await?;
    store.wait_until(receipt.due).await?;
    let leased = store.lease_one(&job.queue).await?;
    store.wait_for(SOON).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let end = store.now().await?;
    store.wait_until(end + LATER - Duration::from_millis(1)).await?;
    expect_ended(&store, &job, receipt).await?;
    store.wait_until(end + LATER).await?;
    store.create(job).await?;
    Ok(())
}

async fn pin_does_not_depend_on_the_history(store: TrialStore) -> TrialResult {
    for limit in [Limit::Off, Limit::Few, Limit::Brief] {
        let queue = store.queue_with(limit);
        let job = store.job(&queue, Due::NOW).remember(LATER);
        let receipt = store.run_job(job.clone(), Verdict::Done).await?;
        if matches!(limit, Limit::Brief) {
            store.wait_for(BRIEF + Duration::from_millis(1)).await?;
        }
        for _ in 0..10 {
            store.run_job(store.job(&queue, Due::NOW), Verdict::Done).await?;
        }
        ensure_eq!(store.get(&queue, job.id).await?, None, "{limit:?}: the job is forgotten");
        expect_ended(&store, &job, receipt).await?;
    }
    Ok(())
}

async fn id_can_be_pinned_again(store: TrialStore) -> TrialResult {
    let job = store.job(&store.queue_with(Limit::Off), Due::NOW);
    store.run_job(job.clone().remember(SOON), Verdict::Done).await?;
    store.wait_for(SOON).await?;
    let job = job.remember(LATER);
    let receipt = store.run_job(job.clone(), Verdict::skip("a reason")).await?;
    store.wait_for(SOON).await?;
    expect_ended(&store, &job, receipt).await
}

async fn ended_ids_survive_a_crash(store: TrialStore) -> TrialResult {
    let [history, pin] = BOTH.map(|by| by.job(&store, Due::NOW));
    let history_receipt = store.run_job(history.clone(), Verdict::Done).await?;
    let pin_receipt = store.run_job(pin.clone(), Verdict::Done).await?;
    let waiting = By::Pin.job(&store, Due::NOW);
    let waiting_receipt = store.create(waiting.clone()).await?;
    let store = store.crash().await?;
    expect_ended(&store, &history, history_receipt).await?;
    expect_ended(&store, &pin, pin_receipt).await?;
    // `remember` survives, too.
    let leased = store.lease_one(&waiting.queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    expect_ended(&store, &waiting, waiting_receipt).await
}

async fn ended_ids_bind_every_process(store: TrialStore) -> TrialResult {
    let other = store.second_client().await?;
    for by in BOTH {
        let job = by.job(&store, Due::NOW);
        let receipt = store.run_job(job.clone(), Verdict::Done).await?;
        ensure_eq!(other.schedule(job).await?, Scheduled::Ended(receipt), "the job has ended");
        let job = by.job(&store, Due::NOW);
        let receipt = other.create(job.clone()).await?;
        let leased = store.lease_one(&job.queue).await?;
        other.settle_accepted(&leased, Verdict::Done).await?;
        expect_ended(&store, &job, receipt).await?;
    }
    Ok(())
}

async fn thousands_of_ids_have_ended(store: TrialStore) -> TrialResult {
    const JOBS: usize = 1_100;
    // Beyond the history's limit, only the pins count.
    let queue = store.queue();
    let jobs: Vec<NewJob> =
        (0..JOBS).map(|_| store.job(&queue, Due::NOW).remember(LATER)).collect();
    store.schedule_all(jobs.clone()).await?;
    store.settle_all_done(&store.lease(&queue, JOBS).await?).await?;
    let answers = store.schedule_all(jobs.clone()).await?;
    for (job, answer) in jobs.iter().zip(answers) {
        ensure_matches!(answer, Scheduled::Ended(receipt) if receipt.id == job.id, "an ended id");
    }
    store.expect_counts(&queue, Counts::NONE, "after a call with ended ids").await?;
    ensure_eq!(store.list(&queue, JobState::Ready, 1).await?, [], "no job is stored");
    Ok(())
}
