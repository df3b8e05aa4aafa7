//! Reading jobs, one at a time or in listings with stable pages.

use std::time::Duration;

use dq_core::{
    BrowseParams, Due, Headers, JobState, OnConflict, Operation, Order, QueueName, Verdict,
};

use super::client::{dead, ids};
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, STATES, TrialStore, key};
use super::trial::topic;

topic! { "browse":
    job_is_returned_as_scheduled [browse],
    job_is_returned_with_its_state [browse],
    job_is_found_by_its_key_while_it_lives [browse, keys],
    missing_job_is_none [browse],
    jobs_are_listed_in_the_order_of_their_state [browse],
    each_job_is_listed_in_one_state [browse],
    pages_of_any_size_list_the_same_jobs [browse],
    pages_do_not_shift [browse],
    descending_listings_are_the_reverse [browse],
    listings_without_payloads_have_all_the_rest [browse],
}

async fn job_is_returned_as_scheduled(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
    let key = store.capabilities().keys.then(|| key("k"));
    let mut new = store.job(&queue, due).headers(headers).max_attempts(4);
    new.key = key;
    store.create(new.clone()).await?;
    let view = store.get_existing(&queue, new.id).await?;
    let job = view.job;
    ensure_eq!((job.id, &job.queue, job.due), (new.id, &queue, due), "id, queue and due time");
    ensure_eq!((job.key, job.payload), (new.key, new.payload), "key and payload");
    ensure_eq!((job.headers, job.max_attempts), (new.headers, Some(4)), "headers and limit");
    ensure_eq!((job.attempts, job.deliveries, job.losses), (0, 0, 0), "all counts are zero");
    ensure_eq!((view.leased_until, view.dead), (None, None), "neither leased nor dead");
    Ok(())
}

async fn job_is_returned_with_its_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, SOON)).await?;
    let id = receipt.id;
    if store.now().await? < receipt.due {
        // On a real clock the job may become due in between.
        let view = store.get_existing(&queue, id).await?;
        ensure!(
            view.state == JobState::Scheduled || store.now().await? >= receipt.due,
            "before its due time a job is scheduled: {view:?}"
        );
    }
    store.wait_until(receipt.due).await?;
    ensure_eq!(store.get_existing(&queue, id).await?.state, JobState::Ready, "at its due time");
    let leased = store.lease_one(&queue).await?;
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.state, JobState::Running, "while it is leased");
    ensure_eq!(view.leased_until, Some(leased.leased_until), "the end of the lease is returned");
    ensure_eq!(view.job, leased.job, "the job is returned as claimed");
    store.settle_accepted(&leased, Verdict::retry(LATER.into(), "a reason")).await?;
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.state, JobState::Scheduled, "while it waits for its retry");
    ensure_eq!((view.job.attempts, view.leased_until), (1, None), "the failed attempt is counted");
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
    for state in &STATES[..4] {
        ensure_eq!(store.listed(&other, *state, 10).await?, [], "an unknown queue lists no jobs");
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

async fn jobs_are_listed_in_the_order_of_their_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut jobs = Vec::new();
    let (mut scheduled, mut running, mut died) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..12_u64 {
        // Out of due order.
        let due = now + LATER + Duration::from_millis(n * 7 % 12);
        let job = store.job(&queue, due);
        scheduled.push((due, job.id));
        jobs.push(job);
    }
    store.schedule_all(jobs).await?;
    for n in 0..8_u32 {
        let job = store.job(&queue, Due::NOW);
        store.create(job).await?;
        let lease_for = Duration::from_secs(60) * (10 + n * 3 % 8);
        let leased = store.lease_one_for(&queue, lease_for).await?;
        if n % 2 == 0 {
            running.push((leased.leased_until, leased.job.id));
        } else {
            died.push(leased);
        }
    }
    let mut dead_ids = Vec::new();
    for leased in died.iter().rev() {
        store.settle_accepted(leased, dead("no")).await?;
        dead_ids.push(leased.job.id);
        store.wait_for(Duration::from_millis(2)).await?;
    }
    let mut ready = Vec::new();
    for n in 0..6_u64 {
        let due = now - LATER + Duration::from_millis(n * 5 % 6);
        ready.push((due, store.create(store.job(&queue, due)).await?.id));
    }
    for (state, mut wanted) in
        [(JobState::Scheduled, scheduled), (JobState::Ready, ready), (JobState::Running, running)]
    {
        wanted.sort_unstable();
        let wanted: Vec<_> = wanted.into_iter().map(|(_, id)| id).collect();
        ensure_eq!(store.listed(&queue, state, 2).await?, wanted, "{state} jobs");
    }
    if store.capabilities().dead_letters {
        let found = store.listed(&queue, JobState::Dead, 2).await?;
        ensure_eq!(found, dead_ids, "dead jobs by the time of death");
    }
    Ok(())
}

async fn each_job_is_listed_in_one_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let stats = store.stats(&queue).await?;
    let counts = [stats.scheduled, stats.ready, stats.running, stats.dead];
    let mut seen = std::collections::HashSet::new();
    for (state, count) in STATES.into_iter().zip(counts) {
        let jobs = store.list(&queue, state, 3).await?;
        ensure_eq!(
            jobs.len() as u64,
            count,
            "the listing has as many {state} jobs as `stats` counts"
        );
        for view in jobs {
            ensure_eq!(view.state, state, "a listing has only jobs in its state");
            ensure!(seen.insert(view.job.id), "job {} is listed once", view.job.id);
            let single = store.get_existing(&queue, view.job.id).await?;
            ensure_eq!(view, single, "`get` returns a job as the listing does");
        }
    }
    Ok(())
}

async fn pages_of_any_size_list_the_same_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    // Equal times.
    let due = store.now().await? + LATER;
    store.create_many(&queue, 15, due).await?;
    for state in &STATES[..4] {
        let one_page = store.listed(&queue, *state, 1_000).await?;
        for limit in [1, 2, 4, 5, 100] {
            let found = store.listed(&queue, *state, limit).await?;
            ensure_eq!(found, one_page, "pages of {limit} {state} jobs list the same jobs");
        }
    }
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

async fn descending_listings_are_the_reverse(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let due = store.now().await? + LATER * 2;
    // Equal times.
    store.create_many(&queue, 8, due).await?;
    for state in STATES.into_iter().take(4) {
        let mut wanted = store.list(&queue, state, 1_000).await?;
        wanted.reverse();
        let params = BrowseParams::new(&queue, state).order(Order::Descending).payloads(true);
        for limit in [1, 2, 3, 5, 7, 1_000] {
            let found = store.list_all(params.limit(limit)).await?;
            ensure_eq!(found, wanted, "descending pages of {limit} {state} jobs");
        }
    }
    Ok(())
}

async fn listings_without_payloads_have_all_the_rest(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
    let mut new = store.job(&queue, LATER).headers(headers).max_attempts(4);
    new.key = store.capabilities().keys.then(|| key("k"));
    store.create(new).await?;
    for state in STATES.into_iter().take(4) {
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
