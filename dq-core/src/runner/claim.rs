//! The claim loop of one store: claims due jobs and starts their handlers.
//!
//! It sleeps until a job is due, a hint arrives, a slot is freed or the sweep interval has passed.
//!
//! `sent_at` is the time at which a claim was sent, by `Clock::elapsed`. A lease that the claim
//! granted does not end before `sent_at` plus its duration.

use std::sync::Arc;
use std::time::Duration;

use super::claim_schedule::ClaimSchedule;
use super::events::Event;
use super::execute::execute;
use super::shared::{RunnerShared, ServedQueue};
use super::slots::{Reservation, Slot};
use super::store::{FinishedRun, StoreContext};
use crate::backend::{
    Backend, ClaimParams, Claimed, LeasedJob, Settlement, Verdict, Wakeups, Want,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{QueueName, Timestamp};

/// Delay after the first failed claim; doubled after each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum delay after failed claims.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// A claim that takes longer is abandoned; leases that it may have granted expire.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(30);

/// Claims and starts jobs until the runner stops.
///
/// # Errors
/// `Closed` if the store was closed.
pub(super) async fn run(context: Arc<StoreContext>) -> Result<()> {
    let runner = &context.runner;
    let queues: Vec<QueueName> = runner.queues.iter().map(|served| served.queue.clone()).collect();
    let mut wakeups = None;
    let mut schedule = ClaimSchedule::new(context.store.claim_ahead());
    let mut retry_delay = MIN_RETRY_DELAY;
    while !runner.stop.is_cancelled() {
        if wakeups.is_none() {
            // If this fails, sweeps find all jobs until the next iteration tries again.
            wakeups = context.store.listen(&queues).await.ok();
        }
        match claim_due(&context, &mut schedule).await {
            Ok(()) => {
                if retry_delay > MIN_RETRY_DELAY {
                    tracing::info!("the store answers again");
                    retry_delay = MIN_RETRY_DELAY;
                }
                wait(&context, &mut schedule, wakeups.as_mut()).await;
            }
            Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
            Err(error) => {
                if retry_delay == MIN_RETRY_DELAY {
                    tracing::warn!(%error, "a claim failed; trying again");
                }
                runner.observers.notify(&Event::StoreFailed(&error));
                tokio::select! {
                    () = runner.clock().sleep(retry_delay) => {}
                    () = runner.stop.cancelled() => {}
                }
                // Hints may have been lost with the connection.
                wakeups = None;
                retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
    Ok(())
}

/// Claims until no job is due or no slot is free.
async fn claim_due(context: &Arc<StoreContext>, schedule: &mut ClaimSchedule) -> Result<()> {
    let runner = &context.runner;
    // In a sweep no job is expected.
    if !schedule.expects_jobs(runner.now()) && !poll_next_due(context, schedule).await? {
        return Ok(());
    }
    loop {
        // Claims no more jobs before the claimed ones have started. Jobs that start together often
        // end together, and one claim can then fill all their slots.
        context.starting.wait().await;
        runner.slots.wait_for_batch().await;
        let reservation = runner.slots.reserve(context.index);
        if reservation.limit == 0 {
            // A freed slot causes the next claim, not a due time.
            schedule.saturated = true;
            schedule.set_next_due(None);
            return Ok(());
        }
        let sent_at = runner.clock().elapsed();
        let wants = wants(runner, &reservation);
        let claimed = match call_claim(context, &wants, reservation.limit, schedule).await {
            Ok(claimed) => claimed,
            Err(error) => {
                runner.slots.release(&reservation, |_| 0);
                return Err(error);
            }
        };
        schedule.saturated = reservation.saturated;
        let Claimed { jobs, next_due, now } = claimed;
        let more_due = next_due.is_some_and(|due| due <= now);
        let is_empty = jobs.is_empty();
        schedule.last_claim_empty = is_empty;
        start_jobs(context, reservation, jobs, sent_at, schedule).await;
        if runner.stop.is_cancelled() || !more_due {
            return Ok(());
        }
        if is_empty {
            // The store reports a due job but returns none; the pause avoids a busy loop.
            schedule.set_next_due(Some(now + Duration::from_millis(1)));
            return Ok(());
        }
    }
}

/// Claims zero jobs, which returns the next due time; returns whether a job is due now.
///
/// This needs no slots, so that a sweep of a slow store does not delay the jobs of another.
async fn poll_next_due(context: &StoreContext, schedule: &mut ClaimSchedule) -> Result<bool> {
    let want = |served: &ServedQueue| Want {
        queue: served.queue.clone(),
        max: 0,
        lease_for: served.policy.lease,
    };
    let wants: Vec<_> = context.runner.queues.iter().map(want).collect();
    let claimed = call_claim(context, &wants, 0, schedule).await?;
    schedule.saturated = false;
    Ok(claimed.next_due.is_some_and(|due| due <= claimed.now))
}

/// Calls `claim` once, and updates clock skew and next due time.
async fn call_claim(
    context: &StoreContext,
    wants: &[Want],
    limit: usize,
    schedule: &mut ClaimSchedule,
) -> Result<Claimed> {
    let runner = &context.runner;
    let sent = runner.now();
    let params = ClaimParams { wants, limit, worker: &runner.name };
    let claimed = tokio::select! {
        claimed = context.store.claim(params) => claimed?,
        () = runner.clock().sleep(CLAIM_TIMEOUT) => {
            let what = format!("the store did not answer a claim for {CLAIM_TIMEOUT:?}");
            return Err(Error::new(ErrorKind::Unavailable, what).operation("claim"));
        }
    };
    schedule.measure_skew(sent, claimed.now, runner.now());
    schedule.set_next_due(claimed.next_due);
    Ok(claimed)
}

/// The arguments of a claim for the reserved slots.
fn wants(runner: &RunnerShared, reservation: &Reservation) -> Vec<Want> {
    let want = |(queue, slots): &(usize, usize)| {
        let served = &runner.queues[*queue];
        Want { queue: served.queue.clone(), max: *slots, lease_for: served.policy.lease }
    };
    reservation.queues.iter().map(want).collect()
}

/// Starts claimed jobs, or releases them if the runner is stopping.
async fn start_jobs(
    context: &Arc<StoreContext>,
    reservation: Reservation,
    jobs: Vec<LeasedJob>,
    sent_at: Duration,
    schedule: &ClaimSchedule,
) {
    let runner = &context.runner;
    let mut used = vec![0; runner.queues.len()];
    let mut accepted = Vec::with_capacity(jobs.len());
    for leased in jobs {
        match runner.index_of.get(&leased.job.queue) {
            Some(queue) => {
                used[*queue] += 1;
                accepted.push((*queue, leased));
            }
            None => {
                // A bug of the backend. The lease expires.
                let error = Error::new(
                    ErrorKind::Internal,
                    format!(
                        "the {} backend returned a job of queue {}, which was not claimed",
                        context.store.name(),
                        leased.job.queue
                    ),
                );
                tracing::error!(%error);
            }
        }
    }
    runner.slots.release(&reservation, |queue| used[queue]);
    if accepted.is_empty() {
        return;
    }
    runner.observers.notify(&Event::Claimed { jobs: accepted.len() });
    for (queue, leased) in accepted {
        let slot = Slot::new(Arc::clone(&runner.slots), queue);
        if runner.stop.is_cancelled() {
            let settlement =
                Settlement { lease: leased.lease(), verdict: Verdict::Release { started: false } };
            // The settle loop outlives the claim loops, so this does not fail.
            let _ = context.finished.send(FinishedRun { settlement, lease: None }).await;
            continue;
        }
        if runner.clock().elapsed() >= sent_at + runner.queues[queue].policy.lease {
            // The claim took as long as the lease: another runner may have the job now.
            tracing::warn!(queue = %leased.job.queue, id = %leased.job.id,
                "the lease had expired when the claim was answered");
            continue;
        }
        let started = schedule.to_store(runner.now());
        let starting = context.starting.token();
        let job = run_job(Arc::clone(context), slot, leased, sent_at, started);
        context.handlers.spawn(async {
            drop(starting);
            job.await;
        });
    }
}

/// Runs one job and passes the verdict to the settle loop. `started` is by the store's clock.
async fn run_job(
    context: Arc<StoreContext>,
    slot: Slot,
    leased: LeasedJob,
    sent_at: Duration,
    started: Timestamp,
) {
    let runner = &context.runner;
    let served = &runner.queues[slot.queue()];
    let lease = leased.lease();
    let guard = context.leases.track(lease.clone(), served.policy.lease, sent_at);
    // A child token: it also fires at the timeout and on abort, without marking the lease as lost.
    let cancelled = guard.lost.child_token();
    let verdict = tokio::select! {
        biased;
        verdict = execute(runner, served, leased, started, cancelled.clone()) => verdict,
        () = runner.abort.cancelled() => {
            // Stops threads and child tasks that the handler has started.
            cancelled.cancel();
            Verdict::Release { started: true }
        }
    };
    // If the backlog of settlements is full, the job waits here with its slot, so that no more jobs
    // are claimed. This fails only if the runner was dropped; the lease then expires.
    let Ok(permit) = context.finished.reserve().await else { return };
    // The next job can start before the store has answered the settlement.
    drop(slot);
    permit.send(FinishedRun { settlement: Settlement { lease, verdict }, lease: Some(guard) });
}

/// Waits for the first of: the next due time, a hint of a job that is due, a freed slot if the last
/// claim was limited by free slots, the end of the sweep interval, shutdown.
async fn wait(
    context: &StoreContext,
    schedule: &mut ClaimSchedule,
    mut wakeups: Option<&mut Wakeups>,
) {
    let runner = &context.runner;
    // Created once, so that neither hints nor a clock that is set back postpone it.
    let mut sweep_interval = runner.clock().sleep(runner.settings.sweep);
    loop {
        let due = async {
            match schedule.next_claim() {
                Some(at) => runner.clock().sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let hint = async {
            match &mut wakeups {
                Some(wakeups) => wakeups.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => return,
            () = &mut sweep_interval => return,
            () = runner.slots.freed(context.index), if schedule.saturated => return,
            () = runner.stop.cancelled() => return,
            hint = hint => {
                // A hint for a later time only sets the timer; the store is not called.
                schedule.apply_hint(hint.due);
                if schedule.expects_jobs(runner.now()) {
                    return;
                }
            }
        }
    }
}
