//! Groups: how many jobs of one group run at once, and that others pass those that wait.

use std::time::Duration;

use dq_core::{
    Cancelled, Due, Flow, JobId, JobState, LeasedJob, Operation, QueueName, Rescheduled,
};
use dq_core::{Scheduled, Settled, Verdict};

use super::client::{BRIEF_LEASE, Counts, WORKER, ids, want};
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore, key};
use super::trial::topic;
use super::wake::hint;

topic! { "groups":
    group_bounds_its_running_jobs [groups],
    jobs_of_others_pass_a_full_group [groups],
    job_ahead_of_its_start_leaves_half_of_its_group_free [groups],
    each_verdict_makes_room_in_a_group [groups],
    expired_lease_makes_room_in_a_group [groups],
    parked_jobs_are_ready [groups, browse],
    parked_jobs_keep_their_order [groups, virtual_time],
    parked_job_can_be_cancelled [groups, cancel],
    parked_job_can_be_moved [groups, reschedule],
    parked_job_can_be_replaced [groups, keys],
    parked_jobs_can_be_purged [groups],
    cancelled_job_leaves_its_place [groups, cancel],
    moved_job_leaves_its_place [groups, reschedule],
    raised_group_limit_lets_jobs_start [groups],
    group_limit_joins_the_queue_limit [groups],
    jobs_without_a_group_are_free [groups],
    groups_are_kept [groups, browse],
    room_in_a_group_wakes_a_worker [groups],
    concurrent_claims_keep_the_group_limit [groups],
}

async fn limited(store: &TrialStore, max: u32) -> TrialResult<QueueName> {
    let queue = store.queue();
    let flow = Flow::UNLIMITED.group_max_running(max);
    store.operate(Operation::DeclareFlow { queue: &queue, flow }).await?;
    Ok(queue)
}

/// Schedules due jobs of a group, the oldest first.
async fn create(
    store: &TrialStore,
    queue: &QueueName,
    group: &str,
    jobs: usize,
) -> TrialResult<Vec<JobId>> {
    let now = store.now().await?;
    let mut created = Vec::new();
    for number in 0..jobs {
        let due = now - Duration::from_millis((jobs - number) as u64);
        created.push(store.create(store.job(queue, due).group(group)).await?.id);
    }
    Ok(created)
}

/// A full group, with one running job and these due ones.
async fn full(store: &TrialStore, jobs: usize) -> TrialResult<(QueueName, LeasedJob, Vec<JobId>)> {
    let queue = limited(store, 1).await?;
    let mut created = create(store, &queue, "a", jobs + 1).await?;
    let mut leased = store.lease(&queue, 9).await?;
    ensure_eq!(ids(&leased), [created.remove(0)], "the oldest job runs, and no other");
    Ok((queue, leased.remove(0), created))
}

async fn job_ahead_of_its_start_leaves_half_of_its_group_free(store: TrialStore) -> TrialResult {
    let queue = limited(&store, 4).await?;
    let mut jobs = create(&store, &queue, "a", 5).await?;
    let claimed = store.claim(&[want(&queue, 5).starting(1)]).await?;
    ensure_eq!(ids(&claimed.jobs), jobs.drain(..2).collect::<Vec<_>>(), "half of the group's room");
    let claimed = store.claim(&[want(&queue, 5).starting(0)]).await?;
    ensure_eq!(claimed.jobs.len(), 0, "no job is to wait");
    ensure!(claimed.next_due.is_some_and(|due| due <= claimed.now), "but others may start");
    let claimed = store.claim(&[want(&queue, 5).starting(5)]).await?;
    ensure_eq!(ids(&claimed.jobs), jobs.drain(..2).collect::<Vec<_>>(), "the rest of the room");

    // Half of an odd limit is rounded down.
    let odd = limited(&store, 3).await?;
    create(&store, &odd, "a", 3).await?;
    let claimed = store.claim(&[want(&odd, 3).starting(1)]).await?;
    ensure_eq!(claimed.jobs.len(), 1, "with two, one of three places would be left");

    // A full group's jobs do not end the claim; jobs without a group may wait.
    let others = limited(&store, 2).await?;
    create(&store, &others, "a", 5).await?;
    store.create_many(&others, 2, Due::NOW).await?;
    let claimed = store.claim(&[want(&others, 9).starting(2)]).await?;
    ensure_eq!(claimed.jobs.len(), 4, "two of the group, and two others");
    Ok(())
}

async fn group_bounds_its_running_jobs(store: TrialStore) -> TrialResult {
    let queue = limited(&store, 2).await?;
    create(&store, &queue, "a", 5).await?;
    let first = store.lease(&queue, 1).await?;
    let second = store.lease(&queue, 9).await?;
    ensure_eq!((first.len(), second.len()), (1, 1), "two jobs of the group may run");
    store.expect_empty_claim(&queue, "two jobs run").await?;
    store.settle_all_done(&first).await?;
    ensure_eq!(store.lease(&queue, 9).await?.len(), 1, "as many as have ended");
    Ok(())
}

async fn jobs_of_others_pass_a_full_group(store: TrialStore) -> TrialResult {
    let queue = limited(&store, 1).await?;
    create(&store, &queue, "a", 5).await?;
    let b = create(&store, &queue, "b", 2).await?;
    let leased = store.lease(&queue, 2).await?;
    ensure!(leased.iter().any(|leased| leased.job.id == b[0]), "jobs of a wait, not those of b");
    store.expect_empty_claim(&queue, "one job of each group runs").await
}

async fn each_verdict_makes_room_in_a_group(store: TrialStore) -> TrialResult {
    let mut verdicts = store.verdicts_to_run_again(LATER);
    verdicts.extend([Verdict::Done, Verdict::skip("a reason")]);
    for verdict in verdicts {
        let (queue, running, waiting) = full(&store, 1).await?;
        store.settle_accepted(&running, verdict.clone()).await?;
        if matches!(verdict, Verdict::Throttle(_)) {
            store.operate(Operation::Resume { queue: &queue }).await?;
        }
        let next = store.lease(&queue, 9).await?;
        ensure_eq!(next.len(), 1, "there is room after {verdict:?}");
        if !matches!(verdict, Verdict::Release { .. }) {
            ensure_eq!(ids(&next), waiting, "the next one of the group runs");
        }
    }
    Ok(())
}

async fn expired_lease_makes_room_in_a_group(store: TrialStore) -> TrialResult {
    let queue = limited(&store, 1).await?;
    create(&store, &queue, "a", 3).await?;
    let lost = store.lease_one_for(&queue, BRIEF_LEASE).await?;
    let blocked = store.lease(&queue, 9).await?;
    if store.now().await? < lost.leased_until {
        ensure!(blocked.is_empty(), "the lease holds the group's only place");
        store.wait_until(lost.leased_until).await?;
        ensure_eq!(ids(&store.lease(&queue, 9).await?), [lost.job.id], "the lost job runs again");
    }
    Ok(())
}

async fn parked_jobs_are_ready(store: TrialStore) -> TrialResult {
    let (queue, running, waiting) = full(&store, 3).await?;
    store
        .expect_counts(&queue, Counts { ready: 3, running: 1, ..Counts::NONE }, "in a full group")
        .await?;
    ensure_eq!(store.listed(&queue, JobState::Ready, 1).await?, waiting, "the ready jobs");
    let view = store.get_existing(&queue, waiting[1]).await?;
    ensure_eq!(view.state, JobState::Ready, "a job that waits for its group");
    let due = store.get_existing(&queue, waiting[0]).await?.job.due;
    ensure_eq!(store.stats(&queue).await?.next_due, Some(due), "the earliest due time");
    store.settle_accepted(&running, Verdict::Done).await?;
    ensure_eq!(store.listed(&queue, JobState::Ready, 1).await?, waiting, "in the same order");
    Ok(())
}

async fn parked_jobs_keep_their_order(store: TrialStore) -> TrialResult {
    let (queue, mut running, mut waiting) = full(&store, 4).await?;
    store.wait_for(Duration::from_millis(1)).await?;
    // Due before all others of the group.
    let early = store.now().await? - Duration::from_secs(1);
    waiting.insert(0, store.create(store.job(&queue, early).group("a")).await?.id);
    for id in waiting {
        store.expect_empty_claim(&queue, "one job runs").await?;
        store.settle_accepted(&running, Verdict::Done).await?;
        let mut next = store.lease(&queue, 9).await?;
        ensure_eq!(ids(&next), [id], "the group's earliest job");
        running = next.remove(0);
    }
    Ok(())
}

async fn parked_job_can_be_cancelled(store: TrialStore) -> TrialResult {
    let (queue, running, waiting) = full(&store, 2).await?;
    ensure_eq!(store.cancel(&queue, waiting[0]).await?, Cancelled::Cancelled, "it waits");
    store.settle_accepted(&running, Verdict::Done).await?;
    ensure_eq!(ids(&store.lease(&queue, 9).await?), waiting[1..], "the job after it");
    Ok(())
}

async fn parked_job_can_be_moved(store: TrialStore) -> TrialResult {
    let (queue, running, waiting) = full(&store, 2).await?;
    let moved = store.reschedule(&queue, waiting[0], LATER).await?;
    ensure!(matches!(moved, Rescheduled::Moved(_)), "it waits: {moved:?}");
    store
        .expect_counts(
            &queue,
            Counts { scheduled: 1, ready: 1, running: 1, ..Counts::NONE },
            "with a moved job",
        )
        .await?;
    store.settle_accepted(&running, Verdict::Done).await?;
    ensure_eq!(ids(&store.lease(&queue, 9).await?), waiting[1..], "the job after it");
    Ok(())
}

async fn parked_job_can_be_replaced(store: TrialStore) -> TrialResult {
    let queue = limited(&store, 1).await?;
    create(&store, &queue, "a", 1).await?;
    let job = || store.job(&queue, Due::NOW).group("a").key(key("k"));
    store.create(job()).await?;
    let running = store.lease(&queue, 9).await?;
    ensure_eq!(running.len(), 1, "one job of the group");
    let new = job().on_conflict(dq_core::OnConflict::Replace);
    let id = new.id;
    let replaced = store.schedule(new).await?;
    ensure!(matches!(replaced, Scheduled::Replaced(_)), "it waits: {replaced:?}");
    store.expect_empty_claim(&queue, "one job runs").await?;
    store.settle_all_done(&running).await?;
    ensure_eq!(ids(&store.lease(&queue, 9).await?), [id], "the new job");
    Ok(())
}

async fn parked_jobs_can_be_purged(store: TrialStore) -> TrialResult {
    let (queue, running, _) = full(&store, 3).await?;
    ensure_eq!(store.operate(Operation::Purge { queue: &queue }).await?, 3, "the waiting jobs");
    store.settle_accepted(&running, Verdict::Done).await?;
    store.expect_counts(&queue, Counts::NONE, "after a purge").await
}

/// A job that has returned to the due jobs, because its group has room, and the one after it.
async fn returned(store: &TrialStore) -> TrialResult<(QueueName, Vec<JobId>)> {
    let (queue, running, waiting) = full(store, 2).await?;
    store.settle_accepted(&running, Verdict::Done).await?;
    Ok((queue, waiting))
}

async fn cancelled_job_leaves_its_place(store: TrialStore) -> TrialResult {
    let (queue, waiting) = returned(&store).await?;
    ensure_eq!(store.cancel(&queue, waiting[0]).await?, Cancelled::Cancelled, "it waits");
    ensure_eq!(ids(&store.lease(&queue, 9).await?), waiting[1..], "the job after it");
    Ok(())
}

async fn moved_job_leaves_its_place(store: TrialStore) -> TrialResult {
    let (queue, waiting) = returned(&store).await?;
    let moved = store.reschedule(&queue, waiting[0], LATER).await?;
    ensure!(matches!(moved, Rescheduled::Moved(_)), "it waits: {moved:?}");
    ensure_eq!(ids(&store.lease(&queue, 9).await?), waiting[1..], "the job after it");
    Ok(())
}

async fn raised_group_limit_lets_jobs_start(store: TrialStore) -> TrialResult {
    let (queue, _, _) = full(&store, 5).await?;
    let set = async |flow| store.operate(Operation::OverrideFlow { queue: &queue, flow }).await;
    set(Some(Flow::UNLIMITED.group_max_running(3))).await?;
    ensure_eq!(store.lease(&queue, 9).await?.len(), 2, "three of the group may run");
    set(Some(Flow::UNLIMITED)).await?;
    ensure_eq!(store.lease(&queue, 9).await?.len(), 3, "all may run");
    Ok(())
}

async fn group_limit_joins_the_queue_limit(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let flow = Flow::UNLIMITED.max_running(3).group_max_running(2);
    store.operate(Operation::DeclareFlow { queue: &queue, flow }).await?;
    for group in ["a", "b"] {
        create(&store, &queue, group, 4).await?;
    }
    let leased = store.lease(&queue, 9).await?;
    ensure_eq!(leased.len(), 3, "three jobs of the queue may run");
    let of_a = leased.iter().filter(|leased| leased.job.group() == Some("a")).count();
    ensure!((1..=2).contains(&of_a), "{of_a} jobs of one group run, and two may");
    Ok(())
}

async fn jobs_without_a_group_are_free(store: TrialStore) -> TrialResult {
    let queue = limited(&store, 1).await?;
    store.create_many(&queue, 3, Due::NOW).await?;
    ensure_eq!(store.lease(&queue, 9).await?.len(), 3, "only groups are limited");
    Ok(())
}

async fn groups_are_kept(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW).group("käufer 1")).await?.id;
    for due in [Due::NOW, LATER.into()] {
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(leased.job.group(), Some("käufer 1"), "the group of a claimed job");
        store.settle_accepted(&leased, Verdict::Snooze(due)).await?;
    }
    let view = store.get_existing(&queue, id).await?;
    ensure_eq!(view.job.group(), Some("käufer 1"), "the group of a waiting job");
    Ok(())
}

async fn room_in_a_group_wakes_a_worker(store: TrialStore) -> TrialResult {
    let (queue, running, _) = full(&store, 1).await?;
    let mut wakeups = store.backend().listen(std::slice::from_ref(&queue), WORKER).await?;
    store.settle_accepted(&running, Verdict::Done).await?;
    hint(&mut wakeups, store.now().await?, "there is room in the group").await
}

async fn concurrent_claims_keep_the_group_limit(store: TrialStore) -> TrialResult {
    const JOBS: usize = 20;
    let queue = limited(&store, 1).await?;
    let groups = ["a", "b", "c"];
    for group in groups {
        create(&store, &queue, group, JOBS).await?;
    }
    let mut done = 0;
    let mut held: Vec<LeasedJob> = Vec::new();
    while done < groups.len() * JOBS {
        let clients = store.two_clients().await?;
        let claims = (0..4).map(|n| {
            let (client, queue) = (clients[n % 2].clone(), queue.clone());
            tokio::spawn(async move { client.lease(&queue, 3).await })
        });
        for claim in claims.collect::<Vec<_>>() {
            held.extend(claim.await.map_err(Failure::new)??);
        }
        for group in groups {
            let running = held.iter().filter(|leased| leased.job.group() == Some(group)).count();
            ensure!(running <= 1, "{running} jobs of {group} run, and one may");
        }
        ensure!(!held.is_empty(), "jobs are due, and there was room");
        // Groups end at different times.
        for leased in held.drain(..held.len().div_ceil(2)) {
            let settled = store.settle(leased.lease(), Verdict::Done).await?;
            ensure_eq!(settled, Settled::Accepted, "the lease is held");
            done += 1;
        }
    }
    store.expect_counts(&queue, Counts::NONE, "after all jobs").await
}
