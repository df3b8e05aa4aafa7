//! Reading jobs, one at a time or in listings with stable pages.

use std::time::Duration;

use dq_core::{
    BrowseParams, Due, JobState, JobView, OnConflict, Operation, Order, QueueName, Verdict,
};

use super::client::{LEASE, dead, ids};
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, STORED_STATES, TrialStore, key};
use super::trial::topic;

topic! { "browse":
    job_is_returned_as_scheduled [browse],
    job_is_found_by_its_key_while_it_lives [browse, keys],
    missing_job_is_none [browse],
    pages_do_not_shift [browse],
    each_job_is_listed_in_the_order_of_its_state [browse],
    pages_of_any_size_list_the_same_jobs_in_either_order [browse],
    listings_without_payloads_have_all_the_rest [browse],
}

async fn job_is_returned_as_scheduled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    let new = store.full_job(&queue, due);
    store.create(new.clone()).await?;
    let view = store.get_existing(&queue, new.id).await?;
    let job = view.job;
    ensure_eq!((job.id, &job.queue, job.due), (new.id, &queue, due), "id, queue and due time");
    ensure_eq!((job.key, job.payload), (new.key, new.payload), "key and payload");
    ensure_eq!(
        (job.headers, job.max_attempts),
        (new.headers, new.max_attempts),
        "headers and limit"
    );
    ensure_eq!((job.attempts, job.deliveries, job.losses), (0, 0, 0), "all counts are zero");
    ensure_eq!((view.leased_until, view.dead), (None, None), "neither leased nor dead");
    Ok(())
}

async fn job_is_found_by_its_key_while_it_lives(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let new = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    let _ = store.schedule(new.clone()).await?;
    let found = store.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(new.id), "the key refers to the new job");
    ensure_eq!(store.get(&other, key("k")).await?, None, "keys of two queues are independent");
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, dead("no")).await?;
    ensure_eq!(store.get(&queue, key("k")).await?, None, "a dead job does not hold its key");
    if store.capabilities().dead_letters {
        let view = store.get_existing(&queue, new.id).await?;
        ensure_eq!(view.job.key, Some(key("k")), "a dead job shows its former key");
    }
    Ok(())
}

async fn missing_job_is_none(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let unknown = store.job(&queue, LATER).id;
    ensure_eq!(store.get(&queue, unknown).await?, None, "an unknown job");
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(store.get(&other, id).await?, None, "a job of another queue");
    for state in STORED_STATES {
        ensure_eq!(store.listed(&other, state, 10).await?, [], "an unknown queue lists no jobs");
    }
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let done = store.get(&queue, id).await?;
    ensure!(
        done.is_none_or(|view| view.state == JobState::Ended),
        "a job that is done is at most remembered"
    );
    Ok(())
}

async fn pages_do_not_shift(store: TrialStore) -> TrialResult {
    for order in [Order::Ascending, Order::Descending] {
        let queue = store.queue();
        let start = store.now().await? - LATER;
        let at = |n: u64| start + Duration::from_millis(n);
        let jobs = |from| (from..from + 9).map(|n| store.job(&queue, at(n))).collect();
        store.schedule_all(jobs(10)).await?;
        let params = BrowseParams::new(&queue, JobState::Ready).order(order);
        let all = store.list_all(params).await?;
        let first = store.backend().browse(params.limit(4)).await?;
        ensure_eq!(first.jobs, all[..4], "the first page");
        // Leases the jobs of the first page, or the last ones.
        let leased = ids(&store.lease(&queue, 4).await?);
        store.schedule_all(jobs(0)).await?;
        store.schedule_all(jobs(100)).await?;
        let rest = store.list_all(params.after(first.next)).await?;
        let rest: Vec<_> = rest.iter().map(|view| view.job.id).collect();
        let left = all[4..].iter().map(|view| view.job.id).filter(|id| !leased.contains(id));
        let left: Vec<_> = left.collect();
        ensure_eq!(rest.len(), left.len() + 9, "jobs added after the cursor are listed");
        ensure_eq!(rest[..left.len()], left, "the pages after the first one continue");
    }
    Ok(())
}

async fn each_job_is_listed_in_the_order_of_its_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    // All times are in another order than the jobs.
    let scrambled = |n: u64| Duration::from_secs(60) * (n * 7 % 12) as u32;
    let now = store.now().await?;
    for n in 0..12 {
        store.create(store.job(&queue, now + LATER + scrambled(n))).await?;
        store.create(store.job(&queue, Due::NOW)).await?;
        let leased = store.lease_one_for(&queue, LEASE + scrambled(n)).await?;
        if n % 2 == 0 {
            store.settle_accepted(&leased, dead("no")).await?;
        }
    }
    for n in 0..12 {
        store.create(store.job(&queue, now - LATER + scrambled(n))).await?;
    }

    let stats = store.stats(&queue).await?;
    let counts = [stats.scheduled, stats.ready, stats.running, stats.dead];
    for (state, count) in STORED_STATES.into_iter().zip(counts) {
        let jobs = store.list(&queue, state, 5).await?;
        ensure_eq!(jobs.len() as u64, count, "as many {state} jobs as `stats` counts");
        ensure!(jobs.iter().all(|view| view.state == state), "a listing has only {state} jobs");
        let time = |view: &JobView| match state {
            JobState::Running => view.leased_until.unwrap_or_default(),
            JobState::Dead => view.dead.as_ref().map(|(_, since)| *since).unwrap_or_default(),
            _ => view.job.due,
        };
        ensure!(
            jobs.is_sorted_by_key(time),
            "waiting jobs are listed by due time, running ones by the end of the lease, dead ones \
             by the time of death: {jobs:?}"
        );
    }
    Ok(())
}

async fn pages_of_any_size_list_the_same_jobs_in_either_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let equal_due_time = store.now().await? + LATER;
    store.create_many(&queue, 15, equal_due_time).await?;
    for state in STORED_STATES {
        let one_page = store.list(&queue, state, 1_000).await?;
        let reversed: Vec<_> = one_page.iter().rev().cloned().collect();
        for (order, wanted) in [(Order::Ascending, one_page), (Order::Descending, reversed)] {
            let params = BrowseParams::new(&queue, state).order(order).payloads(true);
            for limit in [1, 2, 4, 5, 7, 100] {
                let found = store.list_all(params.limit(limit)).await?;
                ensure_eq!(found, wanted, "{order:?} pages of {limit} {state} jobs");
            }
        }
    }
    Ok(())
}

async fn listings_without_payloads_have_all_the_rest(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    store.create(store.full_job(&queue, LATER)).await?;
    for state in STORED_STATES {
        for order in [Order::Ascending, Order::Descending] {
            let params = BrowseParams::new(&queue, state).order(order).limit(4);
            let mut wanted = store.list_all(params.payloads(true)).await?;
            ensure!(
                wanted.iter().all(|view| !view.job.payload.is_empty()),
                "a listing with payloads has those of all {state} jobs"
            );
            for view in &mut wanted {
                view.job.payload.clear();
            }
            let found = store.list_all(params.payloads(false)).await?;
            ensure_eq!(found, wanted, "a listing of {state} jobs without payloads");
        }
    }
    Ok(())
}

async fn store_jobs_in_every_state(store: &TrialStore, queue: &QueueName) -> TrialResult {
    store.create_many(queue, 14, Due::NOW).await?;
    for leased in store.lease(queue, 4).await? {
        store.settle_accepted(&leased, dead("no")).await?;
    }
    store.lease(queue, 5).await?;
    store.create_many(queue, 6, LATER).await?;
    let snoozed = store.lease(queue, 1).await?;
    let snoozed = snoozed.first().ok_or_else(|| Failure::new("five jobs are due"))?;
    store.settle_accepted(snoozed, Verdict::Snooze(LATER.into())).await?;
    if store.capabilities().pause {
        store.operate(Operation::Pause { queue }).await?;
    }
    Ok(())
}
