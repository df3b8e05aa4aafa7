//! Limits for all processes: how many jobs of a queue run at once, and how fast they start.

use std::time::Duration;

use dq_core::{Due, Flow, LeasedJob, Operation, QueueName, Rate, Settled, Timestamp, Verdict};

use super::client::{BRIEF_LEASE, Client, Counts, WORKER, want};
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, SOON, TrialStore};
use super::trial::topic;
use super::wake::hint;

topic! { "flow":
    limit_bounds_the_running_jobs [flow],
    each_verdict_makes_room [flow],
    expired_lease_makes_room [flow],
    full_queue_delays_no_other_queue [flow],
    lower_limit_ends_no_lease [flow],
    override_stands_in_for_the_declaration [flow],
    limits_hold_before_the_first_job [flow],
    full_queue_is_due_at_a_lease_end_at_most [flow],
    rate_spaces_starts [flow, virtual_time],
    rate_of_an_idle_queue_allows_its_burst [flow],
    released_job_has_used_its_start [flow],
    job_ahead_of_its_start_is_not_claimed [flow],
    throttle_closes_the_queue [flow],
    resume_opens_a_throttled_queue [flow, pause],
    room_wakes_a_worker [flow],
    raised_limit_wakes_a_worker [flow],
    clients_share_a_limit [flow, shared],
    concurrent_claims_keep_the_limit [flow],
}

async fn declare(store: &TrialStore, queue: &QueueName, flow: Flow) -> TrialResult<u64> {
    store.operate(Operation::DeclareFlow { queue, flow }).await
}

async fn limited(store: &TrialStore, flow: Flow, due_jobs: usize) -> TrialResult<QueueName> {
    let queue = store.queue();
    ensure_eq!(declare(store, &queue, flow).await?, 1, "a new limit is a change");
    store.create_many(&queue, due_jobs, Due::NOW).await?;
    Ok(queue)
}

fn at_most(max: u32) -> Flow {
    Flow::UNLIMITED.max_running(max)
}

fn rate(text: &str) -> Flow {
    Flow::UNLIMITED.rate(text.parse::<Rate>().expect("a valid rate"))
}

async fn limit_bounds_the_running_jobs(store: TrialStore) -> TrialResult {
    let queue = limited(&store, at_most(3), 10).await?;
    let first = store.lease(&queue, 2).await?;
    ensure_eq!(first.len(), 2, "below the limit a claim is not limited");
    let second = store.lease(&queue, 5).await?;
    ensure_eq!(second.len(), 1, "one more job may run");
    store.expect_empty_claim(&queue, "three jobs run").await?;
    ensure_eq!(store.stats(&queue).await?.flow.in_force(), at_most(3), "stats have the limit");
    store
        .expect_counts(&queue, Counts { ready: 7, running: 3, ..Counts::NONE }, "at the limit")
        .await?;
    store.settle_all_done(&first).await?;
    ensure_eq!(store.lease(&queue, 5).await?.len(), 2, "as many as have ended");
    Ok(())
}

async fn each_verdict_makes_room(store: TrialStore) -> TrialResult {
    let mut verdicts = store.verdicts_to_run_again(LATER);
    verdicts.extend([Verdict::Done, Verdict::skip("a reason")]);
    for verdict in verdicts {
        let queue = limited(&store, at_most(1), 2).await?;
        let leased = store.claim(&[want(&queue, 5)]).await?.jobs;
        ensure_eq!(leased.len(), 1, "one job may run");
        store.settle_accepted(&leased[0], verdict.clone()).await?;
        let next = store.lease(&queue, 5).await?;
        ensure_eq!(next.len(), 1, "there is room after {verdict:?}");
    }
    Ok(())
}

async fn expired_lease_makes_room(store: TrialStore) -> TrialResult {
    let queue = limited(&store, at_most(1), 1).await?;
    let lost = store.lease_one_for(&queue, BRIEF_LEASE).await?;
    store.create(store.job(&queue, Due::NOW)).await?;
    let blocked = store.claim(&[want(&queue, 5)]).await?;
    // On a slow machine this claim is the one after the lease's end.
    let next = if blocked.now < lost.leased_until {
        ensure!(blocked.jobs.is_empty(), "the lease holds the only place");
        store.wait_until(lost.leased_until).await?;
        store.lease(&queue, 5).await?
    } else {
        blocked.jobs
    };
    ensure_eq!(next.len(), 1, "an expired lease holds no place, and its job needs one");
    Ok(())
}

async fn full_queue_delays_no_other_queue(store: TrialStore) -> TrialResult {
    let (full, other) = (limited(&store, at_most(1), 3).await?, store.queue());
    store.create_many(&other, 3, Due::NOW).await?;
    let claimed = store.claim_at_most(3, &[want(&full, 3), want(&other, 3)]).await?;
    let of_other = claimed.jobs.iter().filter(|leased| leased.job.queue == other).count();
    ensure_eq!(of_other, 2, "the rest of the claim goes to the next queue");
    Ok(())
}

async fn lower_limit_ends_no_lease(store: TrialStore) -> TrialResult {
    let queue = limited(&store, at_most(3), 5).await?;
    let leased = store.lease(&queue, 5).await?;
    declare(&store, &queue, at_most(1)).await?;
    store.settle_accepted(&leased[0], Verdict::Done).await?;
    store.expect_empty_claim(&queue, "two jobs run, and one may").await?;
    store.settle_all_done(&leased[1..]).await?;
    ensure_eq!(store.lease(&queue, 5).await?.len(), 1, "the lower limit counts");
    Ok(())
}

async fn override_stands_in_for_the_declaration(store: TrialStore) -> TrialResult {
    let queue = limited(&store, at_most(1), 20).await?;
    let set = async |flow| store.operate(Operation::OverrideFlow { queue: &queue, flow }).await;
    ensure_eq!(set(Some(at_most(3))).await?, 1, "an override is a change");
    ensure_eq!(set(Some(at_most(3))).await?, 0, "the same override is none");
    ensure_eq!(store.lease(&queue, 9).await?.len(), 3, "the override counts");
    ensure_eq!(declare(&store, &queue, at_most(2)).await?, 1, "the declaration is kept");
    let flow = store.stats(&queue).await?.flow;
    ensure_eq!((flow.declared, flow.overriding), (at_most(2), Some(at_most(3))), "both are shown");
    set(Some(Flow::UNLIMITED)).await?;
    ensure_eq!(store.lease(&queue, 9).await?.len(), 9, "an override may be no limit");
    ensure_eq!(set(None).await?, 1, "an override can be removed");
    ensure_eq!(declare(&store, &queue, at_most(2)).await?, 0, "the same declaration is no change");
    store.expect_empty_claim(&queue, "the declared limit counts again").await
}

async fn limits_hold_before_the_first_job(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.operate(Operation::OverrideFlow { queue: &queue, flow: Some(at_most(2)) }).await?;
    declare(&store, &queue, Flow::UNLIMITED).await?;
    store.create_many(&queue, 5, Due::NOW).await?;
    ensure_eq!(store.lease(&queue, 5).await?.len(), 2, "the limit is older than the queue's jobs");
    Ok(())
}

async fn full_queue_is_due_at_a_lease_end_at_most(store: TrialStore) -> TrialResult {
    let queue = limited(&store, at_most(2), 3).await?;
    let leased = store.lease(&queue, 2).await?;
    let until = leased.iter().map(|leased| leased.leased_until).min();
    let claimed = store.claim(&[want(&queue, 2)]).await?;
    ensure!(
        claimed.next_due.is_none_or(|next| Some(next) >= until),
        "only the end of a lease makes room: {claimed:?}"
    );
    Ok(())
}

async fn rate_spaces_starts(store: TrialStore) -> TrialResult {
    let queue = limited(&store, rate("10/1s"), 4).await?;
    let mut starts: Vec<Timestamp> = Vec::new();
    while starts.len() < 4 {
        let claimed = store.claim(&[want(&queue, 4)]).await?;
        ensure!(claimed.jobs.len() <= 1, "jobs start one by one");
        starts.extend(claimed.jobs.iter().map(|_| claimed.now));
        let opens_at = store.stats(&queue).await?.flow.opens_at;
        if let Some(next) = claimed.next_due.filter(|_| starts.len() < 4) {
            ensure_eq!(opens_at, Some(next), "stats say when the next job may start");
            store.wait_until(next).await?;
        }
    }
    let gaps: Vec<_> = starts.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    ensure_eq!(gaps, [Duration::from_millis(100); 3], "ten a second");
    Ok(())
}

async fn rate_of_an_idle_queue_allows_its_burst(store: TrialStore) -> TrialResult {
    let queue = limited(&store, rate("2/1h burst 3"), 10).await?;
    let claimed = store.claim(&[want(&queue, 2)]).await?;
    ensure_eq!(claimed.jobs.len(), 2, "within the burst a claim is not limited");
    let claimed = store.claim(&[want(&queue, 9)]).await?;
    ensure_eq!(claimed.jobs.len(), 1, "the rest of the burst");
    let half = Duration::from_secs(1_800);
    let flow = store.stats(&queue).await?.flow;
    let opens_at = flow.opens_at;
    ensure_eq!(flow.throttled_until, None, "no handler has throttled it");
    let by_state = flow.in_force().rate.map(|rate| rate.tokens(flow.used, claimed.now).next());
    ensure_eq!(by_state, opens_at, "the rate's state says the same");
    ensure!(
        opens_at.is_some_and(|at| at <= claimed.now + half && claimed.now + half / 2 < at),
        "the next start is half an hour after the first: {opens_at:?}"
    );
    ensure!(
        claimed.next_due.is_some_and(|due| Some(due) <= opens_at),
        "then a claim may return more: {:?}",
        claimed.next_due
    );
    store.expect_empty_claim(&queue, "the burst is used up").await
}

async fn released_job_has_used_its_start(store: TrialStore) -> TrialResult {
    let queue = limited(&store, rate("1/1h"), 2).await?;
    let leased = store.lease(&queue, 2).await?;
    ensure_eq!(leased.len(), 1, "one an hour");
    store.settle_accepted(&leased[0], Verdict::Release { started: false }).await?;
    store.expect_empty_claim(&queue, "its start may have been replenished since").await
}

async fn job_ahead_of_its_start_is_not_claimed(store: TrialStore) -> TrialResult {
    let queue = limited(&store, at_most(5), 9).await?;
    let claimed = store.claim(&[want(&queue, 5).starting(2)]).await?;
    ensure_eq!(claimed.jobs.len(), 2, "a place is for a job that starts at once");
    let roomy = limited(&store, at_most(10), 9).await?;
    let claimed = store.claim(&[want(&roomy, 5).starting(2)]).await?;
    ensure_eq!(claimed.jobs.len(), 5, "half of the room stays free");
    let unlimited = store.queue();
    store.create_many(&unlimited, 5, Due::NOW).await?;
    let claimed = store.claim(&[want(&unlimited, 5).starting(2)]).await?;
    ensure_eq!(claimed.jobs.len(), 5, "without a limit jobs may wait in the runner");
    Ok(())
}

/// A queue with due jobs, one of which has closed it for this time.
async fn throttled(
    store: &TrialStore,
    due_jobs: usize,
    time: Duration,
) -> TrialResult<(QueueName, LeasedJob)> {
    let queue = store.queue();
    store.create_many(&queue, due_jobs, Due::NOW).await?;
    let leased = store.lease(&queue, 1).await?.remove(0);
    store.settle_accepted(&leased, Verdict::Throttle(time.into())).await?;
    Ok((queue, leased))
}

async fn throttle_closes_the_queue(store: TrialStore) -> TrialResult {
    let before = store.now().await?;
    let (queue, throttling) = throttled(&store, 3, SOON).await?;
    let latest = store.now().await? + SOON;
    let mut claimed = store.claim(&[want(&queue, 9)]).await?;
    // On a slow machine, the time may be over.
    if claimed.now < before + SOON {
        ensure!(claimed.jobs.is_empty(), "no job of the queue starts before its time");
        ensure!(claimed.next_due.is_some_and(|due| due <= latest), "a claim tells the time");
    }
    if claimed.jobs.is_empty() {
        store.wait_until(latest).await?;
        claimed = store.claim(&[want(&queue, 9)]).await?;
    }
    let again = claimed.jobs;
    ensure_eq!(again.len(), 3, "then all may start");
    let throttled = again.iter().find(|again| again.job.id == throttling.job.id);
    let attempts = throttled.map(|throttled| (throttled.job.attempts, throttled.job.deliveries));
    ensure_eq!(attempts, Some((0, 2)), "the throttle uses no attempt");
    Ok(())
}

async fn resume_opens_a_throttled_queue(store: TrialStore) -> TrialResult {
    let (queue, throttling) = throttled(&store, 2, LATER).await?;
    store.expect_empty_claim(&queue, "the queue is closed").await?;
    let flow = store.stats(&queue).await?.flow;
    let opens_at = flow.opens_at;
    ensure_eq!(flow.throttled_until, opens_at, "the throttle closes it");
    ensure!(
        opens_at.is_some_and(|at| at > throttling.job.due),
        "stats say until when: {opens_at:?}"
    );
    let resume = Operation::Resume { queue: &queue };
    ensure_eq!(store.operate(resume).await?, 1, "opening is a change");
    ensure_eq!(store.operate(resume).await?, 0, "an open queue cannot be opened");
    ensure_eq!(store.lease(&queue, 2).await?.len(), 1, "the other job may start");
    Ok(())
}

/// Claims until a due job has found no room, so that the worker waits for it.
async fn wait_for_room(store: &TrialStore) -> TrialResult<(QueueName, Vec<LeasedJob>)> {
    let queue = limited(store, at_most(1), 2).await?;
    let leased = store.lease(&queue, 1).await?;
    store.expect_empty_claim(&queue, "one job runs").await?;
    Ok((queue, leased))
}

async fn room_wakes_a_worker(store: TrialStore) -> TrialResult {
    let (queue, leased) = wait_for_room(&store).await?;
    let mut wakeups = store.backend().listen(std::slice::from_ref(&queue), WORKER).await?;
    store.settle_all_done(&leased).await?;
    let now = store.now().await?;
    hint(&mut wakeups, now, "a job has ended, and another one is due").await
}

async fn raised_limit_wakes_a_worker(store: TrialStore) -> TrialResult {
    let (queue, _leased) = wait_for_room(&store).await?;
    let mut wakeups = store.backend().listen(std::slice::from_ref(&queue), WORKER).await?;
    declare(&store, &queue, at_most(2)).await?;
    let now = store.now().await?;
    hint(&mut wakeups, now, "there is room for one more").await
}

async fn clients_share_a_limit(store: TrialStore) -> TrialResult {
    let other = store.second_client().await?;
    let queue = limited(&store, at_most(3), 9).await?;
    let first = store.lease(&queue, 2).await?;
    let second = other.lease(&queue, 9).await?;
    ensure_eq!(second.len(), 1, "the first client runs two of three");
    other.settle_all_done(&second).await?;
    store.settle_all_done(&first[..1]).await?;
    ensure_eq!(store.lease(&queue, 9).await?.len(), 2, "both clients' jobs have ended");
    let limited = limited_by_rate(&store, &other).await?;
    ensure_eq!(limited, [2, 1], "two clients share the burst");
    Ok(())
}

async fn limited_by_rate(store: &TrialStore, other: &Client) -> TrialResult<[usize; 2]> {
    let queue = limited(store, rate("1/1h burst 3"), 9).await?;
    Ok([store.lease(&queue, 2).await?.len(), other.lease(&queue, 9).await?.len()])
}

async fn concurrent_claims_keep_the_limit(store: TrialStore) -> TrialResult {
    const LIMIT: usize = 4;
    const JOBS: usize = 60;
    let queue = limited(&store, at_most(LIMIT as u32), JOBS).await?;
    let mut done = 0;
    let mut held: Vec<LeasedJob> = Vec::new();
    while done < JOBS {
        let clients = store.two_clients().await?;
        let claims = (0..6).map(|n| {
            let (client, queue) = (clients[n % 2].clone(), queue.clone());
            tokio::spawn(async move { client.lease(&queue, 3).await })
        });
        for claim in claims.collect::<Vec<_>>() {
            held.extend(claim.await.map_err(Failure::new)??);
        }
        ensure!(held.len() <= LIMIT, "{} jobs run, and {LIMIT} may", held.len());
        ensure!(!held.is_empty(), "jobs are due, and there was room");
        for leased in held.drain(..) {
            let settled = store.settle(leased.lease(), Verdict::Done).await?;
            ensure_eq!(settled, Settled::Accepted, "the lease is held");
            done += 1;
        }
    }
    store.expect_counts(&queue, Counts::NONE, "after all jobs").await
}
