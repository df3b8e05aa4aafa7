//! Ids of ended jobs: a job is not stored again while the history has it, or while
//! [`NewJob::remember`] pins its id.
//!
//! `history` tests when the history forgets an id.

use std::time::Duration;

use dq_core::{Due, JobState, NewJob, OnConflict, QueueName, Receipt, Scheduled, Verdict};

use super::client::Counts;
use super::exit::Exit;
use super::failure::{TrialResult, ensure_eq, ensure_matches};
use super::store::{BRIEF, LATER, Limit, SOON, TrialStore};
use super::trial::topic;

topic! { "ids":
    ended_job_is_not_stored_again [history],
    replaced_job_does_not_replace_its_successor [history, keys],
    ended_ids_among_others_in_one_call [history],
    pin_ends_after_its_time [history],
    pin_lasts_from_the_end_of_the_job [history, virtual_time],
    pin_does_not_depend_on_the_history [history],
    ended_ids_survive_a_crash [history, durable],
    ended_ids_bind_every_process [history, shared],
    thousands_of_ids_have_ended [history],
}

/// What keeps the id of an ended job taken.
#[derive(Debug, Clone, Copy)]
enum TakenBy {
    History,
    /// In a queue without a history.
    Pin,
}

const BOTH: [TakenBy; 2] = [TakenBy::History, TakenBy::Pin];

impl TakenBy {
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
    // The call of a replaced job has a key; `replaced_job_does_not_replace_its_successor` repeats
    // it.
    let exits = Exit::all(&store).into_iter().filter(|exit| *exit != Exit::Replaced);
    for taken_by in BOTH {
        for exit in exits.clone() {
            let job = taken_by.job(&store, Due::NOW);
            let receipt = exit.take(&store, &job).await?;
            expect_ended(&store, &job, receipt).await?;
            store.expect_empty_claim(&job.queue, "the job has ended").await?;
        }
    }
    Ok(())
}

async fn replaced_job_does_not_replace_its_successor(store: TrialStore) -> TrialResult {
    for taken_by in BOTH {
        let queue = taken_by.queue(&store);
        let job = taken_by.remembered(store.keyed(&queue, LATER, "k", OnConflict::Replace));
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

async fn ended_ids_among_others_in_one_call(store: TrialStore) -> TrialResult {
    for taken_by in BOTH {
        let queue = taken_by.queue(&store);
        let [first, second] = [0, 1].map(|_| taken_by.remembered(store.job(&queue, Due::NOW)));
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

async fn ended_ids_survive_a_crash(store: TrialStore) -> TrialResult {
    let [history, pin] = BOTH.map(|taken_by| taken_by.job(&store, Due::NOW));
    let history_receipt = store.run_job(history.clone(), Verdict::Done).await?;
    let pin_receipt = store.run_job(pin.clone(), Verdict::Done).await?;
    let waiting = TakenBy::Pin.job(&store, Due::NOW);
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
    for taken_by in BOTH {
        let job = taken_by.job(&store, Due::NOW);
        let receipt = store.run_job(job.clone(), Verdict::Done).await?;
        ensure_eq!(other.schedule(job.clone()).await?, Scheduled::Ended(receipt), "it has ended");
        let ended = store.listed(&job.queue, JobState::Ended, 10).await?;
        let seen = other.listed(&job.queue, JobState::Ended, 10).await?;
        ensure_eq!(seen, ended, "every process lists the same ended jobs");
        let job = taken_by.job(&store, Due::NOW);
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
