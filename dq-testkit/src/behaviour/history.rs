//! The history: a store remembers ended jobs for a while, without their payload.

use std::time::Duration;

use dq_core::{
    BrowseParams, Cancelled, Due, Ending, Headers, HistoryLimit, JobId, JobState, OnConflict,
    Operation, Order, QueueName, Rescheduled, Scheduled, Verdict,
};

use super::client::{Counts, LEASE, dead};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{BRIEF, FEW, LATER, Limit, TrialStore, key};
use super::trial::topic;

topic! { "history":
    done_job_is_remembered [history],
    skipped_job_keeps_its_reason [history],
    cancelled_job_is_remembered [history, cancel],
    replaced_job_is_remembered [history, keys],
    removed_job_keeps_why_it_was_dead [history, dead_letters],
    purged_jobs_are_remembered [history],
    ended_job_keeps_its_key_and_counts [history],
    ended_job_keeps_its_last_run [history, reasons],
    ended_jobs_are_listed_by_the_time_of_their_end [history],
    pages_list_every_ended_job_once [history],
    oldest_jobs_are_forgotten_beyond_the_maximum [history],
    jobs_are_forgotten_after_the_maximum_age [history],
    age_is_exact_to_the_millisecond [history, virtual_time],
    nothing_is_remembered_if_it_is_off [history],
    ended_job_is_found_by_id_in_its_queue_only [history],
    ended_jobs_cannot_be_changed [history],
    id_that_ends_twice_is_listed_once [history, virtual_time],
    jobs_that_go_on_have_not_ended [history],
    history_is_shared [history, shared],
    limit_holds_after_thousands_of_ends [history],
}

/// In the order of their ends.
async fn ended_ids(store: &TrialStore, queue: &QueueName) -> TrialResult<Vec<JobId>> {
    store.listed(queue, JobState::Ended, 1_000).await
}

async fn run_job(store: &TrialStore, queue: &QueueName, verdict: Verdict) -> TrialResult<JobId> {
    Ok(store.run_job(store.job(queue, Due::NOW), verdict).await?.id)
}

async fn done_job_is_remembered(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let leased = store.start(&queue).await?;
    let before = store.now().await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let after = store.now().await?;
    let (view, ended) = store.get_ended(&queue, leased.job.id).await?;
    ensure!(view.job.payload.is_empty(), "the payload is not remembered");
    ensure_eq!((ended.ending, ended.reason), (Ending::Done, None), "how the job ended");
    ensure!(
        before <= ended.at && ended.at <= after,
        "the time of the end is that of the store's clock: {}",
        ended.at
    );
    ensure_eq!((view.leased_until, &view.dead), (None, &None), "neither leased nor dead");
    let listed = store.list(&queue, JobState::Ended, 10).await?;
    ensure_eq!(listed, [view], "a listing returns the job as `get` does");
    Ok(())
}

async fn skipped_job_keeps_its_reason(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for reason in ["order was paid", "ожидалось \"число\"\n🪦 'x'", "{}"] {
        let id = run_job(&store, &queue, Verdict::skip(reason)).await?;
        let (_, ended) = store.get_ended(&queue, id).await?;
        ensure_eq!(ended.ending, Ending::Skipped, "how the job ended");
        ensure_eq!(ended.reason.as_deref(), Some(reason), "the reason is unchanged");
    }
    Ok(())
}

async fn cancelled_job_is_remembered(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, LATER)).await?.id;
    ensure_eq!(store.cancel(&queue, id).await?, Cancelled::Cancelled, "a waiting job");
    let (view, ended) = store.get_ended(&queue, id).await?;
    ensure_eq!((ended.ending, ended.reason), (Ending::Cancelled, None), "how the job ended");
    ensure_eq!(
        (view.worker, view.leased_since, view.last_error, view.job.deliveries),
        (None, None, None, 0),
        "a job that never ran"
    );
    Ok(())
}

async fn replaced_job_is_remembered(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let old = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?.id;
    let new = store.keyed(&queue, LATER, "k", OnConflict::Replace);
    let replaced = store.schedule(new.clone()).await?;
    ensure_matches!(replaced, Scheduled::Replaced(_), "a waiting job");
    let (view, ended) = store.get_ended(&queue, old).await?;
    ensure_eq!((ended.ending, ended.reason), (Ending::Replaced, None), "how the job ended");
    ensure_eq!(view.job.key, Some(key("k")), "it shows its former key");
    let found = store.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(new.id), "the key refers to the new job");
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

async fn purged_jobs_are_remembered(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut ids = vec![run_job(&store, &queue, dead("no")).await?];
    for due in [Due::NOW, LATER.into()] {
        ids.push(store.create(store.job(&queue, due)).await?.id);
    }
    store.operate(Operation::Purge { queue: &queue }).await?;
    let from = usize::from(!store.capabilities().dead_letters);
    for id in &ids[from..] {
        let (_, ended) = store.get_ended(&queue, *id).await?;
        ensure_eq!(ended.ending, Ending::Removed, "how a purged job ended");
    }
    Ok(())
}

async fn ended_job_keeps_its_key_and_counts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
    let mut new = store.job(&queue, Due::NOW).headers(headers).max_attempts(7);
    new.key = store.capabilities().keys.then(|| key("k"));
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

    if store.capabilities().cancel {
        let id = store.create(store.job(&queue, Due::NOW)).await?.id;
        let leased = store.lease_one_as("third", &queue, LEASE).await?;
        let running = store.get_existing(&queue, id).await?;
        store.settle_accepted(&leased, Verdict::retry(LATER.into(), "no network")).await?;
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::Cancelled, "between two runs");
        let (view, _) = store.get_ended(&queue, id).await?;
        ensure_eq!(
            (view.worker.as_deref(), view.leased_since, view.last_error.as_deref()),
            (Some("third"), running.leased_since, Some("no network")),
            "a job that is cancelled between two runs keeps the last one"
        );
    }
    Ok(())
}

/// The jobs end one by one at different times.
async fn end_jobs(store: &TrialStore, queue: &QueueName, count: usize) -> TrialResult<Vec<JobId>> {
    // The end order differs from the schedule order.
    store.create_many(queue, count, Due::NOW).await?;
    let mut leased = store.lease(queue, count).await?;
    leased.rotate_left(count / 2);
    for leased in &leased {
        store.settle_accepted(leased, Verdict::Done).await?;
        store.wait_for(Duration::from_millis(2)).await?;
    }
    Ok(super::client::ids(&leased))
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
    store.create_many(&queue, 25, Due::NOW).await?;
    // In one call, so that many jobs end at the same time.
    store.settle_all_done(&store.lease(&queue, 25).await?).await?;
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
    let few = FEW as usize;
    let ids = end_jobs(&store, &queue, few + 4).await?;
    let (forgotten, kept) = ids.split_at(4);
    ensure_eq!(ended_ids(&store, &queue).await?, kept, "the last {FEW} ended jobs");
    for id in forgotten {
        ensure_eq!(store.get(&queue, *id).await?, None, "a job before the last {FEW}");
    }
    for id in kept {
        store.get_ended(&queue, *id).await?;
    }
    let ids = end_jobs(&store, &other, few + 1).await?;
    ensure_eq!(ended_ids(&store, &other).await?, ids, "a queue with the default limit");
    Ok(())
}

async fn jobs_are_forgotten_after_the_maximum_age(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Brief);
    let id = run_job(&store, &queue, Verdict::Done).await?;
    store.wait_for(BRIEF + Duration::from_millis(1)).await?;
    ensure_eq!(store.get(&queue, id).await?, None, "a job that ended too long ago");
    ensure_eq!(ended_ids(&store, &queue).await?, [], "a job that ended too long ago");
    let params = BrowseParams::new(&queue, JobState::Ended).order(Order::Descending);
    ensure_eq!(store.list_all(params).await?, [], "a job that ended too long ago");
    Ok(())
}

async fn age_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Brief);
    let id = run_job(&store, &queue, Verdict::Done).await?;
    let (_, ended) = store.get_ended(&queue, id).await?;
    store.wait_until(ended.at + BRIEF).await?;
    store.get_ended(&queue, id).await?;
    ensure_eq!(ended_ids(&store, &queue).await?, [id], "a job that ended not too long ago");
    store.wait_until(ended.at + BRIEF + Duration::from_millis(1)).await?;
    ensure_eq!(store.get(&queue, id).await?, None, "a job that ended too long ago");
    ensure_eq!(ended_ids(&store, &queue).await?, [], "a job that ended too long ago");
    Ok(())
}

async fn nothing_is_remembered_if_it_is_off(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Off);
    let id = run_job(&store, &queue, Verdict::Done).await?;
    ensure_eq!(store.get(&queue, id).await?, None, "a job of a queue without history");
    ensure_eq!(ended_ids(&store, &queue).await?, [], "a queue without history");
    store.expect_counts(&queue, Counts::NONE, "after the job is done").await
}

async fn ended_job_is_found_by_id_in_its_queue_only(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let mut job = store.job(&queue, Due::NOW);
    job.key = store.capabilities().keys.then(|| key("k"));
    let id = store.run_job(job.clone(), Verdict::Done).await?.id;
    run_job(&store, &other, Verdict::Done).await?;
    ensure_eq!(store.get(&other, id).await?, None, "a job of another queue");
    ensure_eq!(ended_ids(&store, &queue).await?, [id], "the ended jobs of one queue");
    ensure_eq!(ended_ids(&store, &store.queue()).await?, [], "an unknown queue");
    if store.capabilities().keys {
        ensure_eq!(store.get(&queue, key("k")).await?, None, "an ended job does not hold its key");
    }
    Ok(())
}

async fn ended_jobs_cannot_be_changed(store: TrialStore) -> TrialResult {
    let (can, queue) = (store.capabilities(), store.queue());
    let id = run_job(&store, &queue, Verdict::Done).await?;
    let before = store.get_existing(&queue, id).await?;
    let jobs = [id];
    if can.cancel {
        ensure_eq!(store.cancel(&queue, id).await?, Cancelled::NotFound, "an ended job");
    }
    if can.reschedule {
        let moved = store.reschedule(&queue, id, LATER).await?;
        ensure_eq!(moved, Rescheduled::NotFound, "an ended job");
    }
    if can.dead_letters {
        let replay = Operation::Replay { queue: &queue, jobs: &jobs, due: Due::NOW };
        ensure_eq!(store.operate(replay).await?, 0, "an ended job is not replayed");
        let remove = Operation::Remove { queue: &queue, jobs: &jobs };
        ensure_eq!(store.operate(remove).await?, 0, "an ended job is not removed");
    }
    let purge = Operation::Purge { queue: &queue };
    ensure_eq!(store.operate(purge).await?, 0, "an ended job is not purged");
    let after = store.get_existing(&queue, id).await?;
    ensure_eq!(after, before, "the entry of the history is unchanged");
    store.expect_counts(&queue, Counts::NONE, "after the job has ended").await?;
    store.expect_empty_claim(&queue, "the job has ended").await
}

async fn id_that_ends_twice_is_listed_once(store: TrialStore) -> TrialResult {
    let queue = store.queue_with(Limit::Brief);
    let new = store.job(&queue, Due::NOW);
    for verdict in [Verdict::Done, Verdict::skip("the second time")] {
        // The history no longer shows the first end.
        store.wait_for(BRIEF + Duration::from_millis(1)).await?;
        store.create(new.clone()).await?;
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, verdict).await?;
    }
    ensure_eq!(ended_ids(&store, &queue).await?, [new.id], "an id is listed once");
    let (_, ended) = store.get_ended(&queue, new.id).await?;
    ensure_eq!(ended.ending, Ending::Skipped, "how the job ended the last time");
    Ok(())
}

async fn jobs_that_go_on_have_not_ended(store: TrialStore) -> TrialResult {
    let (can, queue) = (store.capabilities(), store.queue());
    let mut verdicts = vec![
        Verdict::retry(LATER.into(), "a reason"),
        Verdict::Snooze(LATER.into()),
        Verdict::Release { started: true },
    ];
    if can.dead_letters {
        verdicts.insert(0, dead("no"));
    }
    if can.again {
        verdicts.insert(0, Verdict::Again { due: LATER.into(), payload: "next".into() });
    }
    for verdict in verdicts {
        let id = run_job(&store, &queue, verdict.clone()).await?;
        let view = store.get_existing(&queue, id).await?;
        ensure!(view.ended.is_none(), "{verdict:?} does not end a job: {view:?}");
    }
    ensure_eq!(ended_ids(&store, &queue).await?, [], "no job has ended");
    Ok(())
}

async fn history_is_shared(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.second_client().await?);
    let id = run_job(&store, &queue, Verdict::Done).await?;
    let (view, _) = other.get_ended(&queue, id).await?;
    ensure_eq!(other.list(&queue, JobState::Ended, 10).await?, [view], "the same in every process");
    let new = store.job(&queue, Due::NOW);
    other.create(new.clone()).await?;
    let leased = other.lease_one(&queue).await?;
    other.settle_accepted(&leased, Verdict::skip("a reason")).await?;
    let (_, ended) = store.get_ended(&queue, new.id).await?;
    ensure_eq!(ended.ending, Ending::Skipped, "how the job of another process ended");
    Ok(())
}

async fn limit_holds_after_thousands_of_ends(store: TrialStore) -> TrialResult {
    const JOBS: usize = 1_200;
    for limit in [None, Some(Limit::Few)] {
        let queue = limit.map_or_else(|| store.queue(), |limit| store.queue_with(limit));
        let max = limit.map_or(HistoryLimit::default().max, |_| FEW) as usize;
        store.create_many(&queue, JOBS, Due::NOW).await?;
        store.settle_all_done(&store.lease(&queue, JOBS).await?).await?;
        let count = ended_ids(&store, &queue).await?.len();
        ensure_eq!(count, max, "the limit after many ends in one call");
        store.create_many(&queue, JOBS, LATER).await?;
        store.operate(Operation::Purge { queue: &queue }).await?;
        let count = ended_ids(&store, &queue).await?.len();
        ensure_eq!(count, max, "the limit after a purge");
    }
    Ok(())
}
