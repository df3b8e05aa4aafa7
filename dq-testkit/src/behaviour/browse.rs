//! Reading jobs, one at a time or in listings with stable pages.

use std::time::Duration;

use dq_core::{
    BrowseParams, DeadKind, DeadReason, Due, Headers, JobId, JobState, OnConflict, Operation,
    Order, QueueName, Verdict,
};

use super::client::want;
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, TrialStore, key};
use super::trial::topic;

topic! { "browse":
    job_is_returned_as_scheduled [Browse],
    job_is_returned_with_its_state [Browse],
    job_is_found_by_its_key [Browse, Keys],
    dead_job_is_found_by_id_but_not_by_key [Browse, Keys, DeadLetters],
    missing_job_is_none [Browse],
    waiting_jobs_are_listed_in_due_order [Browse],
    running_jobs_are_listed_by_lease_end [Browse],
    dead_jobs_are_listed_by_time_of_death [Browse, DeadLetters],
    each_job_is_listed_in_one_state [Browse],
    listings_follow_the_clock [Browse],
    pages_of_any_size_list_the_same_jobs [Browse],
    pages_of_equal_due_times_list_the_same_jobs [Browse],
    pages_do_not_shift_when_jobs_are_removed [Browse],
    pages_do_not_shift_when_jobs_are_added [Browse],
    descending_listings_are_the_reverse [Browse],
    descending_pages_do_not_shift [Browse],
    listings_without_payloads_have_all_the_rest [Browse],
    unknown_queue_lists_no_jobs [Browse],
    listing_has_no_side_effects [Browse],
}

const STATES: [JobState; 4] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead];

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

async fn job_is_found_by_its_key(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let id = store.create(store.keyed(&queue, LATER, "k", OnConflict::Keep)).await?.id;
    let found = store.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(id), "a live job is found by its key");
    let found = store.get(&other, key("k")).await?;
    ensure_eq!(found, None, "keys of two queues are independent");
    let new = store.keyed(&queue, LATER, "k", OnConflict::Replace);
    let _ = store.schedule(new.clone()).await?;
    let found = store.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(new.id), "the key refers to the new job");
    Ok(())
}

async fn dead_job_is_found_by_id_but_not_by_key(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?.id;
    let leased = store.lease_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    ensure_eq!(store.get(&queue, key("k")).await?, None, "a dead job does not hold its key");
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.job.key, Some(key("k")), "a dead job shows its former key");
    Ok(())
}

async fn missing_job_is_none(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let unknown = store.job(&queue, LATER).id;
    ensure_eq!(store.get(&queue, unknown).await?, None, "an unknown job");
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(store.get(&other, id).await?, None, "a job of another queue");
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    let done = store.get(&queue, id).await?;
    ensure!(
        done.is_none_or(|view| view.state == JobState::Ended),
        "a job that is done is at most remembered"
    );
    Ok(())
}

async fn waiting_jobs_are_listed_in_due_order(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let mut scheduled = Vec::new();
    let mut ready = Vec::new();
    for n in 0..20_u64 {
        // Out of due order.
        let step = Duration::from_millis(n * 7 % 20);
        let later = now + LATER + step;
        scheduled.push((later, store.create(store.job(&queue, later)).await?.id));
        let earlier = now - LATER + step;
        ready.push((earlier, store.create(store.job(&queue, earlier)).await?.id));
    }
    scheduled.sort_unstable();
    ready.sort_unstable();
    for (state, wanted) in [(JobState::Scheduled, scheduled), (JobState::Ready, ready)] {
        let wanted: Vec<_> = wanted.into_iter().map(|(_, id)| id).collect();
        ensure_eq!(listed(&store, &queue, state, 6).await?, wanted, "{state} jobs in due order");
    }
    Ok(())
}

async fn running_jobs_are_listed_by_lease_end(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut wanted = Vec::new();
    for minutes in [50, 20, 40, 10, 30_u32] {
        store.create(store.job(&queue, Due::NOW)).await?;
        let lease_for = Duration::from_secs(60) * minutes;
        let leased = store.lease_one_for(&queue, lease_for).await?;
        wanted.push((leased.leased_until, leased.job.id));
    }
    wanted.sort_unstable();
    let wanted: Vec<_> = wanted.into_iter().map(|(_, id)| id).collect();
    let found = listed(&store, &queue, JobState::Running, 2).await?;
    ensure_eq!(found, wanted, "running jobs by the end of their lease");
    Ok(())
}

async fn dead_jobs_are_listed_by_time_of_death(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..5).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    let mut claimed = store.lease(&queue, 5).await?;
    claimed.rotate_left(2);
    for leased in &claimed {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        store.settle_accepted(leased, Verdict::Dead { reason, failed: true }).await?;
        store.wait_for(Duration::from_millis(2)).await?;
    }
    let found = listed(&store, &queue, JobState::Dead, 2).await?;
    ensure_eq!(found, super::client::ids(&claimed), "dead jobs by the time of death");
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

async fn listings_follow_the_clock(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.create(store.job(&queue, SOON)).await?;
    let second = store.create(store.job(&queue, LATER)).await?;
    store.wait_until(first.due).await?;
    ensure_eq!(listed(&store, &queue, JobState::Ready, 9).await?, [first.id], "ready jobs");
    let waiting = listed(&store, &queue, JobState::Scheduled, 9).await?;
    ensure_eq!(waiting, [second.id], "scheduled jobs");
    Ok(())
}

async fn pages_of_any_size_list_the_same_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    for state in STATES {
        let one_page = listed(&store, &queue, state, 1_000).await?;
        for limit in [1, 2, 3, 4, 5, 7, 100] {
            let found = listed(&store, &queue, state, limit).await?;
            ensure_eq!(
                found,
                one_page,
                "pages of {limit} {state} jobs list the same jobs as one page"
            );
        }
    }
    Ok(())
}

async fn pages_of_equal_due_times_list_the_same_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    store.schedule_all((0..25).map(|_| store.job(&queue, due)).collect()).await?;
    let one_page = listed(&store, &queue, JobState::Scheduled, 1_000).await?;
    ensure_eq!(one_page.len(), 25, "all jobs with equal due times are listed");
    for limit in [1, 4, 24, 25] {
        let found = listed(&store, &queue, JobState::Scheduled, limit).await?;
        ensure_eq!(found, one_page, "pages of {limit} jobs with equal due times");
    }
    Ok(())
}

async fn pages_do_not_shift_when_jobs_are_removed(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let jobs = (0..9).map(|n| store.job(&queue, now - LATER + Duration::from_millis(n)));
    store.schedule_all(jobs.collect()).await?;
    let all = listed(&store, &queue, JobState::Ready, 1_000).await?;
    let page = BrowseParams::new(&queue, JobState::Ready).limit(4).payloads(true);
    let first = store.backend().browse(page).await?;
    // Also leases the job at the cursor.
    store.lease(&queue, 4).await?;
    let second = store.backend().browse(page.after(first.next)).await?;
    let found: Vec<_> = second.jobs.iter().map(|view| view.job.id).collect();
    ensure_eq!(found, all[4..8], "the second page continues after the first");
    Ok(())
}

async fn pages_do_not_shift_when_jobs_are_added(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let start = store.now().await? + LATER;
    let at = |n: u64| start + Duration::from_millis(n);
    store.schedule_all((0..9).map(|n| store.job(&queue, at(10 + n))).collect()).await?;
    let all = listed(&store, &queue, JobState::Scheduled, 1_000).await?;
    let page = BrowseParams::new(&queue, JobState::Scheduled).limit(4).payloads(true);
    let first = store.backend().browse(page).await?;
    store.schedule_all((0..9).map(|n| store.job(&queue, at(n))).collect()).await?;
    let last = store.create(store.job(&queue, at(100))).await?.id;
    let rest = page.after(first.next).limit(100);
    let rest = store.backend().browse(rest).await?;
    let found: Vec<_> = rest.jobs.iter().map(|view| view.job.id).collect();
    let wanted: Vec<_> = all[4..].iter().copied().chain([last]).collect();
    ensure_eq!(
        found,
        wanted,
        "jobs added before the cursor do not shift the page, jobs added after it are listed"
    );
    Ok(())
}

async fn descending_listings_are_the_reverse(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let due = store.now().await? + LATER * 2;
    // Equal times.
    store.schedule_all((0..8).map(|_| store.job(&queue, due)).collect()).await?;
    for state in STATES {
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

async fn descending_pages_do_not_shift(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let start = store.now().await? + LATER;
    let at = |n: u64| start + Duration::from_millis(n);
    store.schedule_all((0..9).map(|n| store.job(&queue, at(10 + n))).collect()).await?;
    let params = BrowseParams::new(&queue, JobState::Scheduled).order(Order::Descending);
    let all = store.list_all(params).await?;
    let first = store.backend().browse(params.limit(4)).await?;
    ensure_eq!(first.jobs, all[..4], "the first page has the latest due times");
    store.schedule_all((0..9).map(|n| store.job(&queue, at(100 + n))).collect()).await?;
    let last = store.create(store.job(&queue, at(0))).await?.id;
    let rest = store.list_all(params.after(first.next)).await?;
    let found: Vec<_> = rest.iter().map(|view| view.job.id).collect();
    let wanted: Vec<_> = all[4..].iter().map(|view| view.job.id).chain([last]).collect();
    ensure_eq!(
        found,
        wanted,
        "jobs added before the cursor do not shift the page, jobs added after it are listed"
    );
    Ok(())
}

async fn listings_without_payloads_have_all_the_rest(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
    let mut new = store.job(&queue, LATER).headers(headers).max_attempts(4);
    new.key = store.capabilities().keys.then(|| key("k"));
    store.create(new).await?;
    for state in STATES {
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

async fn unknown_queue_lists_no_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    for state in STATES {
        ensure!(
            listed(&store, &queue, state, 10).await?.is_empty(),
            "an unknown queue lists no jobs"
        );
    }
    Ok(())
}

async fn listing_has_no_side_effects(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_jobs_in_every_state(&store, &queue).await?;
    let before = store.stats(&queue).await?;
    for state in STATES {
        listed(&store, &queue, state, 2).await?;
    }
    let claimed = store.claim(&[want(&queue, 0)]).await?;
    ensure!(claimed.jobs.is_empty(), "nothing was wanted");
    ensure_eq!(
        store.stats(&queue).await?,
        before,
        "listings and a claim of zero jobs change no count"
    );
    Ok(())
}

async fn store_jobs_in_every_state(store: &TrialStore, queue: &QueueName) -> TrialResult {
    store.schedule_all((0..14).map(|_| store.job(queue, Due::NOW)).collect()).await?;
    for leased in store.lease(queue, 4).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    store.lease(queue, 5).await?;
    store.schedule_all((0..6).map(|_| store.job(queue, LATER)).collect()).await?;
    let snoozed = store.lease(queue, 1).await?;
    let snoozed = snoozed.first().ok_or_else(|| Failure::new("five jobs are due"))?;
    store.settle_accepted(snoozed, Verdict::Snooze(LATER.into())).await?;
    if store.capabilities().pause {
        store.operate(Operation::Pause { queue }).await?;
    }
    Ok(())
}

async fn listed(
    store: &TrialStore,
    queue: &QueueName,
    state: JobState,
    limit: usize,
) -> TrialResult<Vec<JobId>> {
    let jobs = store.list(queue, state, limit).await?;
    Ok(jobs.into_iter().map(|view| view.job.id).collect())
}
