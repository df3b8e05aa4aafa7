//! Looking: single jobs as they are, listings in order, pages that do not slip.

use std::time::Duration;

use dq_core::{
    BrowseParams, DeadKind, DeadReason, Due, Headers, JobId, JobState, NewJob, OnConflict,
    Operation, QueueName, Verdict,
};

use super::failure::{Failure, Passed, ensure, ensure_eq};
use super::handle::want;
use super::stand::{LATER, SOON, Stand, key};
use super::trial::topic;

topic! { "browse":
    job_is_shown_as_it_was_handed_in [Browse],
    job_is_shown_in_each_state [Browse],
    job_is_found_by_its_key [Browse, Keys],
    dead_job_is_found_by_id_only [Browse, Keys, DeadLetters],
    what_is_not_there_is_not_shown [Browse],
    waiting_jobs_are_listed_in_due_order [Browse],
    running_jobs_are_listed_by_the_end_of_their_lease [Browse],
    dead_jobs_are_listed_by_the_time_of_death [Browse, DeadLetters],
    each_job_is_listed_once [Browse],
    listing_follows_the_clock [Browse],
    pages_of_any_size_hold_the_same [Browse],
    pages_of_equal_times_hold_the_same [Browse],
    pages_do_not_slip_when_jobs_go [Browse],
    pages_do_not_slip_when_jobs_come [Browse],
    unknown_queue_is_empty [Browse],
    looking_changes_nothing [Browse],
}

const STATES: [JobState; 4] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead];

async fn job_is_shown_as_it_was_handed_in(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = stand.now().await? + LATER;
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
    let key = stand.capabilities().keys.then(|| key("k"));
    let new = NewJob { key, headers, max_attempts: Some(4), ..stand.job(&queue, due) };
    stand.create(new.clone()).await?;
    let view = stand.view(&queue, new.id).await?;
    let job = view.job;
    ensure_eq!((job.id, &job.queue, job.due), (new.id, &queue, due), "id, queue and due time");
    ensure_eq!((job.key, job.payload), (new.key, new.payload), "key and payload");
    ensure_eq!((job.headers, job.max_attempts), (new.headers, Some(4)), "headers and limit");
    ensure_eq!((job.attempts, job.deliveries, job.losses), (0, 0, 0), "nothing has happened yet");
    ensure_eq!((view.leased_until, view.dead), (None, None), "neither leased nor dead");
    Ok(())
}

async fn job_is_shown_in_each_state(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, SOON)).await?;
    let id = receipt.id;
    if stand.now().await? < receipt.due {
        // On a real clock the due time may come between the two calls.
        let view = stand.view(&queue, id).await?;
        ensure!(
            view.state == JobState::Scheduled || stand.now().await? >= receipt.due,
            "before its due time a job is scheduled: {view:?}"
        );
    }
    stand.reach(receipt.due).await?;
    ensure_eq!(stand.view(&queue, id).await?.state, JobState::Ready, "at its due time");
    let taken = stand.take_one(&queue).await?;
    let view = stand.view(&queue, id).await?;
    ensure_eq!(view.state, JobState::Running, "while it is leased");
    ensure_eq!(view.leased_until, Some(taken.leased_until), "the end of the lease is shown");
    ensure_eq!(view.job, taken.job, "the job is shown as its holder has it");
    stand.accept(&taken, Verdict::Retry(LATER.into())).await?;
    let view = stand.view(&queue, id).await?;
    ensure_eq!(view.state, JobState::Scheduled, "while it waits for its retry");
    ensure_eq!((view.job.attempts, view.leased_until), (1, None), "the failure is shown");
    Ok(())
}

async fn job_is_found_by_its_key(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.queue());
    let id = stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?.id;
    let found = stand.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(id), "a live job is found by its key");
    let found = stand.get(&other, key("k")).await?;
    ensure_eq!(found, None, "a key is of one queue");
    let new = stand.keyed(&queue, LATER, "k", OnConflict::Replace);
    let _ = stand.put(new.clone()).await?;
    let found = stand.get(&queue, key("k")).await?.map(|view| view.job.id);
    ensure_eq!(found, Some(new.id), "the key names the job that has it now");
    Ok(())
}

async fn dead_job_is_found_by_id_only(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?.id;
    let taken = stand.take_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    stand.accept(&taken, Verdict::Dead { reason, failed: true }).await?;
    ensure_eq!(stand.get(&queue, key("k")).await?, None, "a dead job does not hold its key");
    let view = stand.view(&queue, id).await?;
    ensure_eq!(view.job.key, Some(key("k")), "but shows which one it had");
    Ok(())
}

async fn what_is_not_there_is_not_shown(stand: Stand) -> Passed {
    let (queue, other) = (stand.queue(), stand.queue());
    let never = stand.job(&queue, LATER).id;
    ensure_eq!(stand.get(&queue, never).await?, None, "a job never scheduled");
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(stand.get(&other, id).await?, None, "a job of another queue");
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Done).await?;
    ensure_eq!(stand.get(&queue, id).await?, None, "a job that is done");
    Ok(())
}

async fn waiting_jobs_are_listed_in_due_order(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let mut scheduled = Vec::new();
    let mut ready = Vec::new();
    for n in 0..20_u64 {
        let step = Duration::from_millis(n * 7 % 20);
        let later = now + LATER + step;
        scheduled.push((later, stand.create(stand.job(&queue, later)).await?.id));
        let earlier = now - LATER + step;
        ready.push((earlier, stand.create(stand.job(&queue, earlier)).await?.id));
    }
    scheduled.sort_unstable();
    ready.sort_unstable();
    for (state, wanted) in [(JobState::Scheduled, scheduled), (JobState::Ready, ready)] {
        let wanted: Vec<_> = wanted.into_iter().map(|(_, id)| id).collect();
        ensure_eq!(listed(&stand, &queue, state, 6).await?, wanted, "{state} jobs in due order");
    }
    Ok(())
}

async fn running_jobs_are_listed_by_the_end_of_their_lease(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut wanted = Vec::new();
    for minutes in [50, 20, 40, 10, 30_u32] {
        stand.create(stand.job(&queue, Due::NOW)).await?;
        let lease_for = Duration::from_secs(60) * minutes;
        let taken = stand.take_one_for(&queue, lease_for).await?;
        wanted.push((taken.leased_until, taken.job.id));
    }
    wanted.sort_unstable();
    let wanted: Vec<_> = wanted.into_iter().map(|(_, id)| id).collect();
    let found = listed(&stand, &queue, JobState::Running, 2).await?;
    ensure_eq!(found, wanted, "running jobs by the end of their lease");
    Ok(())
}

async fn dead_jobs_are_listed_by_the_time_of_death(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..5).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let mut taken = stand.take(&queue, 5).await?;
    taken.rotate_left(2);
    for leased in &taken {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        stand.accept(leased, Verdict::Dead { reason, failed: true }).await?;
        stand.pass(Duration::from_millis(2)).await?;
    }
    let found = listed(&stand, &queue, JobState::Dead, 2).await?;
    ensure_eq!(found, super::handle::ids(&taken), "dead jobs by the time of death");
    Ok(())
}

async fn each_job_is_listed_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    mixed(&stand, &queue).await?;
    let stats = stand.stats(&queue).await?;
    let counts = [stats.scheduled, stats.ready, stats.running, stats.dead];
    let mut seen = std::collections::HashSet::new();
    for (state, count) in STATES.into_iter().zip(counts) {
        let jobs = stand.list(&queue, state, 3).await?;
        ensure_eq!(jobs.len() as u64, count, "the listing of {state} jobs holds those counted");
        for view in jobs {
            ensure_eq!(view.state, state, "a listing holds jobs of its state only");
            ensure!(seen.insert(view.job.id), "job {} is listed once", view.job.id);
            let alone = stand.view(&queue, view.job.id).await?;
            ensure_eq!(view, alone, "a job looks the same in a listing and alone");
        }
    }
    Ok(())
}

async fn listing_follows_the_clock(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.create(stand.job(&queue, SOON)).await?;
    let second = stand.create(stand.job(&queue, LATER)).await?;
    stand.reach(first.due).await?;
    ensure_eq!(listed(&stand, &queue, JobState::Ready, 9).await?, [first.id], "what is due");
    let waiting = listed(&stand, &queue, JobState::Scheduled, 9).await?;
    ensure_eq!(waiting, [second.id], "what is not due");
    Ok(())
}

async fn pages_of_any_size_hold_the_same(stand: Stand) -> Passed {
    let queue = stand.queue();
    mixed(&stand, &queue).await?;
    for state in STATES {
        let whole = listed(&stand, &queue, state, 1_000).await?;
        for limit in [1, 2, 3, 4, 5, 7, 100] {
            let found = listed(&stand, &queue, state, limit).await?;
            ensure_eq!(found, whole, "pages of {limit} {state} jobs hold what one page does");
        }
    }
    Ok(())
}

async fn pages_of_equal_times_hold_the_same(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = stand.now().await? + LATER;
    stand.put_all((0..25).map(|_| stand.job(&queue, due)).collect()).await?;
    let whole = listed(&stand, &queue, JobState::Scheduled, 1_000).await?;
    ensure_eq!(whole.len(), 25, "equal times do not hide each other");
    for limit in [1, 4, 24, 25] {
        let found = listed(&stand, &queue, JobState::Scheduled, limit).await?;
        ensure_eq!(found, whole, "pages of {limit} among equal times");
    }
    Ok(())
}

async fn pages_do_not_slip_when_jobs_go(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let jobs = (0..9).map(|n| stand.job(&queue, now - LATER + Duration::from_millis(n)));
    stand.put_all(jobs.collect()).await?;
    let all = listed(&stand, &queue, JobState::Ready, 1_000).await?;
    let page = BrowseParams { queue: &queue, state: JobState::Ready, after: None, limit: 4 };
    let first = stand.backend().browse(page).await?;
    // Everything on the first page goes, the one at its end included.
    stand.take(&queue, 4).await?;
    let second = stand.backend().browse(BrowseParams { after: first.next, ..page }).await?;
    let found: Vec<_> = second.jobs.iter().map(|view| view.job.id).collect();
    ensure_eq!(found, all[4..8], "the second page begins where the first one ended");
    Ok(())
}

async fn pages_do_not_slip_when_jobs_come(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await? + LATER;
    let at = |n: u64| now + Duration::from_millis(n);
    stand.put_all((0..9).map(|n| stand.job(&queue, at(10 + n))).collect()).await?;
    let all = listed(&stand, &queue, JobState::Scheduled, 1_000).await?;
    let page = BrowseParams { queue: &queue, state: JobState::Scheduled, after: None, limit: 4 };
    let first = stand.backend().browse(page).await?;
    stand.put_all((0..9).map(|n| stand.job(&queue, at(n))).collect()).await?;
    let last = stand.create(stand.job(&queue, at(100))).await?.id;
    let rest = BrowseParams { after: first.next, limit: 100, ..page };
    let rest = stand.backend().browse(rest).await?;
    let found: Vec<_> = rest.jobs.iter().map(|view| view.job.id).collect();
    let wanted: Vec<_> = all[4..].iter().copied().chain([last]).collect();
    ensure_eq!(
        found,
        wanted,
        "what comes before the place does not shift it, what comes after is seen"
    );
    Ok(())
}

async fn unknown_queue_is_empty(stand: Stand) -> Passed {
    let queue = stand.queue();
    for state in STATES {
        ensure!(listed(&stand, &queue, state, 10).await?.is_empty(), "a queue never seen is empty");
    }
    Ok(())
}

async fn looking_changes_nothing(stand: Stand) -> Passed {
    let queue = stand.queue();
    mixed(&stand, &queue).await?;
    let before = stand.stats(&queue).await?;
    for state in STATES {
        listed(&stand, &queue, state, 2).await?;
    }
    let claimed = stand.claim(&[want(&queue, 0)]).await?;
    ensure!(claimed.jobs.is_empty(), "nothing was wanted");
    ensure_eq!(stand.stats(&queue).await?, before, "looking changes nothing");
    Ok(())
}

/// Some jobs in every state.
async fn mixed(stand: &Stand, queue: &QueueName) -> Passed {
    stand.put_all((0..14).map(|_| stand.job(queue, Due::NOW)).collect()).await?;
    for leased in stand.take(queue, 4).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        stand.accept(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    stand.take(queue, 5).await?;
    stand.put_all((0..6).map(|_| stand.job(queue, LATER)).collect()).await?;
    let ready = stand.take(queue, 1).await?;
    let ready = ready.first().ok_or_else(|| Failure::new("five jobs are due"))?;
    stand.accept(ready, Verdict::Snooze(LATER.into())).await?;
    if stand.capabilities().pause {
        stand.operate(Operation::Pause { queue }).await?;
    }
    Ok(())
}

/// The ids of a listing, read page by page.
async fn listed(
    stand: &Stand,
    queue: &QueueName,
    state: JobState,
    limit: usize,
) -> Passed<Vec<JobId>> {
    let jobs = stand.list(queue, state, limit).await?;
    Ok(jobs.into_iter().map(|view| view.job.id).collect())
}
