//! The history: a store remembers ended jobs for a while, without their payload.

use std::time::Duration;

use dq_core::{
    BrowseParams, Due, Ending, HistoryLimit, JobId, JobState, NewJob, Operation, Order, QueueName,
    Scheduled, Verdict,
};

use super::client::{Counts, LEASE, dead};
use super::exit::Exit;
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{BRIEF, FEW, LATER, Limit, TrialStore, key};
use super::trial::topic;

topic! { "history":
    every_ended_job_is_remembered [history],
    skipped_job_keeps_its_reason [history],
    removed_job_keeps_why_it_was_dead [history, dead_letters],
    ended_job_keeps_its_key_and_counts [history],
    ended_job_keeps_its_last_run [history, reasons],
    ended_jobs_are_listed_by_the_time_of_their_end [history],
    pages_list_every_ended_job_once [history],
    oldest_jobs_are_forgotten_beyond_the_maximum [history],
    jobs_are_forgotten_after_the_maximum_age [history],
    age_is_exact_to_the_millisecond [history, virtual_time],
    nothing_is_remembered_if_it_is_off [history],
    ended_job_is_found_by_id_in_its_queue_only [history],
    limit_holds_after_thousands_of_ends [history],
}

/// In the order of their ends.
async fn ended_ids(store: &TrialStore, queue: &QueueName) -> TrialResult<Vec<JobId>> {
    store.listed(queue, JobState::Ended, 1_000).await
}

async fn run_job(store: &TrialStore, queue: &QueueName, verdict: Verdict) -> TrialResult<JobId> {
    Ok(store.run_job(store.job(queue, Due::NOW), verdict).await?.id)
}

async fn every_ended_job_is_remembered(store: TrialStore) -> TrialResult {
    for exit in Exit::all(&store) {
        let queue = store.queue();
        let job = store.full_job(&queue, Due::NOW);
        let before = store.now().await?;
        exit.take(&store, &job).await?;
        let after = store.now().await?;

        let (view, ended) = store.get_ended(&queue, job.id).await?;
        ensure_eq!(ended.ending, exit.ending(), "how the job ended");
        ensure!(
            before <= ended.at && ended.at <= after,
            "the time of the end is that of the store's clock: {}",
            ended.at
        );
        ensure!(view.job.payload.is_empty(), "the payload is not remembered");
        ensure_eq!((view.leased_until, &view.dead), (None, &None), "neither leased nor dead");
        let listed = store.list(&queue, JobState::Ended, 10).await?;
        ensure_eq!(listed, [view], "a listing returns the job as `get` does");
    }
    Ok(())
}

async fn skipped_job_keeps_its_reason(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for reason in ["order was paid", "ожидалось \"число\"\n🪦 'x'", "{}"] {
        let id = run_job(&store, &queue, Verdict::skip(reason)).await?;
        let (_, ended) = store.get_ended(&queue, id).await?;
        ensure_eq!(ended.reason.as_deref(), Some(reason), "the reason is unchanged");
    }
    Ok(())
}

async fn removed_job_keeps_why_it_was_dead(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let verdict = dead("card 'x' expired");
    let Verdict::Dead { reason, .. } = &verdict else { return Ok(()) };
    let id = run_job(&store, &queue, verdict.clone()).await?;
    let jobs = [id];
    store.operate(Operation::Remove { queue: &queue, jobs: &jobs }).await?;
    let (view, ended) = store.get_ended(&queue, id).await?;
    ensure_eq!(ended.ending, Ending::Removed, "how the job ended");
    ensure_eq!(ended.reason, Some(reason.to_string()), "the reason for which it was dead");
    ensure_eq!((view.dead, view.job.attempts), (None, 1), "an ended job is not dead any more");
    Ok(())
}

async fn ended_job_keeps_its_key_and_counts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = store.full_job(&queue, Due::NOW);
    store.run_job(new, Verdict::retry(Due::NOW, "a reason")).await?;
    let last = store.lease_one(&queue).await?;
    store.settle_accepted(&last, Verdict::Done).await?;
    let (view, _) = store.get_ended(&queue, last.job.id).await?;
    let mut wanted = last.job;
    (wanted.payload, wanted.headers) = Default::default();
    ensure_eq!(view.job, wanted, "the job as it ran last, without its payload and headers");
    Ok(())
}

async fn ended_job_keeps_its_last_run(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    let leased = store.lease_one_as("first", &queue, LEASE).await?;
    store.settle_accepted(&leased, Verdict::retry(Due::NOW, "card expired")).await?;
    let leased = store.lease_one_as("second", &queue, LEASE).await?;
    let running = store.get_existing(&queue, id).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let (view, ended) = store.get_ended(&queue, id).await?;
    ensure_eq!(view.worker.as_deref(), Some("second"), "the holder of the last lease");
    ensure_eq!(view.leased_since, running.leased_since, "the start of the last lease");
    ensure!(view.leased_since <= Some(ended.at), "a job ends after it began");
    ensure_eq!(view.last_error.as_deref(), Some("card expired"), "the error of the last retry");
    Ok(())
}

/// The jobs end one by one at different times.
async fn end_jobs(store: &TrialStore, queue: &QueueName, count: usize) -> TrialResult<Vec<JobId>> {
    store.create_many(queue, count, Due::NOW).await?;
    let mut leased = store.lease(queue, count).await?;
    leased.rotate_left(count / 2);
    for leased in &leased {
        store.settle_accepted(leased, Verdict::Done).await?;
        store.wait_for(Duration::from_millis(2)).await?;
    }
    Ok(super::client::ids(&leased))
}

/// Many jobs end at the same time, by one call.
async fn end_jobs_at_once(store: &TrialStore, queue: &QueueName, count: usize) -> TrialResult {
    store.create_many(queue, count, Due::NOW).await?;
    store.settle_all_done(&store.lease(queue, count).await?).await
}

async fn ended_jobs_are_listed_by_the_time_of_their_end(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut wanted = end_jobs(&store, &queue, 7).await?;
    ensure_eq!(ended_ids(&store, &queue).await?, wanted, "the first end first");
    wanted.reverse();
    let params = BrowseParams::new(&queue, JobState::Ended).limit(3).order(Order::Descending);
    let newest_first = store.backend().browse(params).await?;
    let found: Vec<_> = newest_first.jobs.iter().map(|view| view.job.id).collect();
    ensure_eq!(found, wanted[..3], "the first page has the last ends");
    let found = store.list_all(params).await?;
    let found: Vec<_> = found.iter().map(|view| view.job.id).collect();
    ensure_eq!(found, wanted, "the last end first");
    Ok(())
}

async fn pages_list_every_ended_job_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    end_jobs_at_once(&store, &queue, 25).await?;
    for order in [Order::Ascending, Order::Descending] {
        let params = BrowseParams::new(&queue, JobState::Ended).order(order);
        let one_page = store.list_all(params.limit(1_000)).await?;
        ensure_eq!(one_page.len(), 25, "all jobs that ended in one call");
        for limit in [4, 24, 25] {
            let pages = store.list_all(params.limit(limit)).await?;
            ensure_eq!(pages, one_page, "{order:?} pages of {limit} ended jobs");
        }
    }
    // Jobs that end meanwhile do not shift the pages.
    let params = BrowseParams::new(&queue, JobState::Ended).order(Order::Descending).limit(10);
    let one_page = store.list_all(params.limit(1_000)).await?;
    let first = store.backend().browse(params).await?;
    end_jobs(&store, &queue, 3).await?;
    let rest = store.list_all(params.after(first.next)).await?;
    ensure_eq!(rest, one_page[10..], "the pages after the first one");
    Ok(())
}

async fn oldest_jobs_are_forgotten_beyond_the_maximum(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue_with(Limit::Few), store.queue());
    let oldest = store.job(&queue, Due::NOW);
    store.run_job(oldest.clone(), Verdict::Done).await?;
    store.wait_for(Duration::from_millis(2)).await?;
    let kept = end_jobs(&store, &queue, FEW as usize).await?;

    ensure_eq!(ended_ids(&store, &queue).await?, kept, "the last {FEW} ended jobs");
    ensure_eq!(store.get(&queue, oldest.id).await?, None, "the job before the last {FEW}");
    for id in kept {
        store.get_ended(&queue, id).await?;
    }
    let ids = end_jobs(&store, &other, FEW as usize + 1).await?;
    ensure_eq!(ended_ids(&store, &other).await?, ids, "a queue with the default limit");

    // A store may know a few more ids than it lists.
    end_jobs_at_once(&store, &queue, 100).await?;
    store.create(oldest).await?;
    Ok(())
}

async fn jobs_are_forgotten_after_the_maximum_age(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Brief);
    let job = store.job(&queue, Due::NOW);
    store.run_job(job.clone(), Verdict::Done).await?;
    store.wait_for(BRIEF + Duration::from_millis(1)).await?;
    for order in [Order::Ascending, Order::Descending] {
        let params = BrowseParams::new(&queue, JobState::Ended).order(order);
        ensure_eq!(store.list_all(params).await?, [], "a job that ended too long ago");
    }
    expect_forgotten(&store, &job).await
}

async fn age_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Brief);
    let job = store.job(&queue, Due::NOW);
    let receipt = store.run_job(job.clone(), Verdict::Done).await?;
    let (_, ended) = store.get_ended(&queue, job.id).await?;

    store.wait_until(ended.at + BRIEF).await?;
    store.get_ended(&queue, job.id).await?;
    ensure_eq!(ended_ids(&store, &queue).await?, [job.id], "a job that ended not too long ago");
    let answer = store.schedule(job.clone()).await?;
    ensure_eq!(answer, Scheduled::Ended(receipt), "its id is taken");

    store.wait_until(ended.at + BRIEF + Duration::from_millis(1)).await?;
    expect_forgotten(&store, &job).await
}

async fn nothing_is_remembered_if_it_is_off(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Off);
    let job = store.job(&queue, Due::NOW);
    store.run_job(job.clone(), Verdict::Done).await?;
    store.expect_counts(&queue, Counts::NONE, "after the job is done").await?;
    expect_forgotten(&store, &job).await
}

async fn expect_forgotten(store: &TrialStore, job: &NewJob) -> TrialResult {
    ensure_eq!(store.get(&job.queue, job.id).await?, None, "a forgotten job");
    ensure_eq!(ended_ids(store, &job.queue).await?, [], "a forgotten job is not listed");
    let leased = store.start_job(job.clone()).await?;
    ensure_eq!(leased.job.payload, job.payload, "a job with a forgotten id runs again");
    Ok(())
}

async fn ended_job_is_found_by_id_in_its_queue_only(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let id = store.run_job(store.full_job(&queue, Due::NOW), Verdict::Done).await?.id;
    run_job(&store, &other, Verdict::Done).await?;
    ensure_eq!(store.get(&other, id).await?, None, "a job of another queue");
    ensure_eq!(ended_ids(&store, &queue).await?, [id], "the ended jobs of one queue");
    ensure_eq!(ended_ids(&store, &store.queue()).await?, [], "an unknown queue");
    if store.capabilities().keys {
        ensure_eq!(store.get(&queue, key("k")).await?, None, "an ended job does not hold its key");
    }
    Ok(())
}

async fn limit_holds_after_thousands_of_ends(store: TrialStore) -> TrialResult {
    const JOBS: usize = 1_200;
    for limit in [None, Some(Limit::Few)] {
        let queue = limit.map_or_else(|| store.queue(), |limit| store.queue_with(limit));
        let max = limit.map_or(HistoryLimit::default().max, |_| FEW) as usize;
        end_jobs_at_once(&store, &queue, JOBS).await?;
        let count = ended_ids(&store, &queue).await?.len();
        ensure_eq!(count, max, "the limit after many ends in one call");
        store.create_many(&queue, JOBS, LATER).await?;
        store.operate(Operation::Purge { queue: &queue }).await?;
        let count = ended_ids(&store, &queue).await?.len();
        ensure_eq!(count, max, "the limit after a purge");
    }
    Ok(())
}
