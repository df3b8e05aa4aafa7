//! The claim loop of one store: claims due jobs and starts their handlers.
//!
//! `sent_at` is when a claim was sent, by the lease clock. Its leases do not expire before
//! `sent_at` plus their duration.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::ahead::MAX_HOLD;
use super::claim_schedule::ClaimSchedule;
use super::events::Event;
use super::execute::execute;
use super::hints::Hints;
use super::leases::LeaseGuard;
use super::shared::{CALL_TIMEOUT, RunnerShared, ServedQueue};
use super::slots::{Place, Reservation, Scope, Share};
use super::store::{FinishedRun, RunSignals, Start, StoreContext, report_lost, report_quarantined};
use crate::backend::{Backend, ClaimParams, Claimed, Lease, LeasedJob, Settlement, Verdict, Want};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Doubles with each further failure.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// By the runner's clock. The store's may differ, so the runner hands the job back; the store
/// ignores that if the lease has expired there, too.
pub(super) const EXPIRED_IN_CLAIM: &str = "the lease had expired when the claim was answered";

/// # Errors
/// `Closed` if the store was closed; `Incompatible` if a newer version has taken it over.
pub(super) async fn run(context: Arc<StoreContext>) -> Result<()> {
    let runner = &context.runner;
    let mut hints = Hints::new(runner, &context.store);
    let mut schedule = ClaimSchedule::new(context.store.claim_ahead());
    let mut retry_delay = MIN_RETRY_DELAY;
    while !runner.stop.is_cancelled() {
        hints.subscribe().await;
        match claim_due(&context, &mut schedule).await {
            Ok(()) => {
                if retry_delay > MIN_RETRY_DELAY {
                    tracing::info!("the store answers again");
                    retry_delay = MIN_RETRY_DELAY;
                }
                wait(&context, &mut schedule, &mut hints).await;
            }
            Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::Incompatible) => {
                return Err(error);
            }
            Err(error) => {
                if retry_delay == MIN_RETRY_DELAY {
                    tracing::warn!(%error, "a claim failed; trying again");
                }
                runner.observers.notify(&Event::StoreFailed(&error));
                tokio::select! {
                    () = runner.clock().sleep(retry_delay) => {}
                    () = runner.stop.cancelled() => {}
                }
                hints.unsubscribe();
                retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
    Ok(())
}

async fn claim_due(context: &Arc<StoreContext>, schedule: &mut ClaimSchedule) -> Result<()> {
    let runner = &context.runner;
    if !schedule.expects_jobs(runner.now()) && !poll_next_due(context, schedule).await? {
        return Ok(());
    }
    let mut last_scope = Scope::All;
    loop {
        // Jobs that start together often end together; one claim then fills all their slots.
        runner.slots.wait_for_batch().await;
        // If both sorts of queues need their own claims, they take turns.
        let expects_internal = schedule.expects_internal_jobs(runner.now());
        let prefers_internal = expects_internal && last_scope != Scope::Internal;
        let mut reservation = runner.slots.reserve(context.index, prefers_internal);
        if reservation.limit == 0 && expects_internal && !prefers_internal {
            reservation = runner.slots.reserve(context.index, true);
        }
        schedule.internal_full = reservation.internal_full;
        if reservation.limit == 0 {
            schedule.saturated = true;
            // The wait for a slot does not count as the store's time.
            context.claim_time.give_up();
            schedule.set_next_due(None);
            return Ok(());
        }
        let (scope, limit) = (reservation.scope, reservation.limit);
        last_scope = scope;
        let sent_at = context.leases.now();
        let wants = wants(runner, &reservation);
        let claimed = match call_claim(context, &wants, limit, schedule).await {
            Ok(claimed) => claimed,
            Err(error) => {
                runner.slots.fill(&reservation, []);
                return Err(error);
            }
        };
        schedule.saturated = reservation.saturated;
        let Claimed { jobs, next_due, now, .. } = claimed;
        let more_due = next_due.is_some_and(|due| due <= now);
        let is_empty = jobs.is_empty();
        schedule.last_claim_empty = is_empty;
        if scope != Scope::Application && !schedule.internal_full {
            // A job due but not returned is either withheld or belongs to the application. As
            // `internal_due` it would trigger claims in a busy loop.
            let next = next_due.filter(|due| *due > now || !is_empty);
            schedule.internal_queues_claimed(next, now);
        }
        start_jobs(context, &reservation, jobs, sent_at, schedule).await;
        // Another process may be slow to claim the jobs that were given back.
        schedule.saturated |= !all_started(context).await;
        if runner.stop.is_cancelled() {
            return Ok(());
        }
        if scope == Scope::Internal {
            continue;
        }
        if more_due && is_empty {
            // The delay avoids a busy loop.
            schedule.job_withheld(now, runner.settings.sweep);
            return Ok(());
        }
        schedule.no_job_withheld();
        if !more_due {
            return Ok(());
        }
    }
}

/// Claims zero jobs to learn the next due time; returns whether a job is due now.
///
/// Needs no slots: a slow store's sweep does not delay another store's jobs.
async fn poll_next_due(context: &StoreContext, schedule: &mut ClaimSchedule) -> Result<bool> {
    let want = |served: &ServedQueue| Want::new(served.queue.clone(), 0, served.policy.lease);
    let wants: Vec<_> = context.runner.queues.iter().map(want).collect();
    let claimed = call_claim(context, &wants, 0, schedule).await?;
    schedule.saturated = false;
    let is_due = claimed.next_due.is_some_and(|due| due <= claimed.now);
    if !is_due {
        schedule.no_job_withheld();
    }
    Ok(is_due)
}

async fn call_claim(
    context: &StoreContext,
    wants: &[Want],
    limit: usize,
    schedule: &mut ClaimSchedule,
) -> Result<Claimed> {
    let runner = &context.runner;
    let sent = runner.now();
    let params = ClaimParams::new(wants, limit, &runner.name);
    // If a claim goes unanswered, the leases it granted expire.
    context.claim_time.begin(runner.clock().elapsed());
    let claimed = runner.answer("claim", CALL_TIMEOUT, context.store.claim(params)).await?;
    context.claim_time.end(runner.clock().elapsed());
    schedule.measure_skew(sent, claimed.now, runner.now());
    *lock(&context.skew) = Some(schedule.skew());
    schedule.set_next_due(claimed.next_due);
    report_quarantined(runner, &claimed);
    Ok(claimed)
}

fn wants(runner: &RunnerShared, reservation: &Reservation) -> Vec<Want> {
    let want = |share: &Share| {
        let served = &runner.queues[share.queue];
        Want::new(served.queue.clone(), share.jobs(), served.policy.lease)
    };
    reservation.queues.iter().map(want).collect()
}

async fn start_jobs(
    context: &Arc<StoreContext>,
    reservation: &Reservation,
    jobs: Vec<LeasedJob>,
    sent_at: Duration,
    schedule: &ClaimSchedule,
) {
    let runner = &context.runner;
    let at = schedule.to_store(runner.now());
    let elapsed = runner.clock().elapsed();
    let mut wanted = vec![0; runner.queues.len()];
    reservation.queues.iter().for_each(|share| wanted[share.queue] = share.jobs());
    let (mut accepted, mut excess) = (Vec::with_capacity(jobs.len()), Vec::new());
    for leased in jobs {
        match runner.index_of.get(&leased.job.queue) {
            // The backend returned more jobs than asked for: a bug.
            Some(queue) if wanted[*queue] == 0 || accepted.len() == reservation.limit => {
                excess.push(leased.lease());
            }
            Some(queue) => {
                wanted[*queue] -= 1;
                let due = elapsed.saturating_sub(at.since(leased.job.due));
                // Only objectives use it.
                let waited_for_slot =
                    runner.queues[*queue].starts.is_some() && runner.slots.has_waited(*queue, due);
                accepted.push((*queue, leased, Start { at, waited_for_slot }));
            }
            None => {
                // A backend bug; the lease expires.
                let error = Error::new(
                    ErrorKind::Internal,
                    format!(
                        "the {} backend returned a job of queue {}, which was not claimed",
                        context.store.name(),
                        leased.job.queue
                    ),
                );
                tracing::error!(%error);
                runner.observers.notify(&Event::StoreFailed(&error));
            }
        }
    }
    let places = runner.slots.fill(reservation, accepted.iter().map(|(queue, ..)| *queue));
    for lease in excess {
        tracing::error!(queue = %lease.queue, id = %lease.job, "the store returned more jobs than were asked for");
        release(context, lease).await;
    }
    if accepted.is_empty() {
        return;
    }
    let (mut jobs, mut held) = (0, 0);
    for ((queue, ..), place) in accepted.iter().zip(&places) {
        if !runner.queues[*queue].queue.is_reserved() {
            let count = if matches!(place, Place::Slot(_)) { &mut jobs } else { &mut held };
            *count += 1;
        }
    }
    if jobs + held > 0 {
        runner.observers.notify(&Event::Claimed { jobs, held });
    }
    let now = context.leases.now();
    for ((queue, leased, start), place) in accepted.into_iter().zip(places) {
        let (lease, lease_for) = (leased.lease(), runner.queues[queue].policy.lease);
        let has_expired = now >= sent_at + lease_for;
        if has_expired {
            tracing::warn!(queue = %lease.queue, id = %lease.job, "{EXPIRED_IN_CLAIM}");
        }
        if has_expired || runner.stop.is_cancelled() {
            release(context, lease).await;
            continue;
        }
        let (guard, earlier) = context.leases.track(lease, lease_for, sent_at);
        if let Some(lost) = earlier.as_ref().and_then(|earlier| earlier.lost.as_ref()) {
            report_lost(
                context,
                lost,
                "the store has granted the job again (did the clock jump, or \
                was the computer suspended?)",
            );
        }
        let earlier_ended = earlier.map(|run| run.ended);
        let starting = context.starting.token();
        let claimed = ClaimedJob { leased, guard, start, place, earlier_ended, starting };
        context.handlers.spawn(run_job(Arc::clone(context), claimed));
    }
}

/// Waits until all claimed jobs have started. Gives back jobs that find no slot in time or before
/// the runner stops; returns false if there were any.
async fn all_started(context: &StoreContext) -> bool {
    let runner = &context.runner;
    tokio::select! {
        biased;
        () = context.starting.wait() => return true,
        () = runner.stop.cancelled() => {}
        () = async { runner.clock().sleep(MAX_HOLD).await } => {}
    }
    let given_up = runner.slots.give_up(context.index);
    context.starting.wait().await;
    given_up == 0
}

async fn release(context: &StoreContext, lease: Lease) {
    let settlement = Settlement::new(lease, Verdict::Release { started: false });
    // Cannot fail: the settle loop outlives the claim loops.
    let _ = context.finished.send(FinishedRun { settlement, lease: None }).await;
}

struct ClaimedJob {
    leased: LeasedJob,
    guard: LeaseGuard,
    start: Start,
    place: Place,
    earlier_ended: Option<CancellationToken>,
    /// Held until the job has a slot or is given back.
    starting: TaskTrackerToken,
}

/// Runs one job once it has a slot and its earlier run has ended; sends the verdict to the settle
/// loop.
async fn run_job(context: Arc<StoreContext>, claimed: ClaimedJob) {
    let runner = &context.runner;
    let ClaimedJob { leased, mut guard, mut start, place, earlier_ended, starting } = claimed;
    let lease = leased.lease();
    let is_in_line = matches!(place, Place::InLine(_));
    start.waited_for_slot |= is_in_line;
    let waits_since = (earlier_ended.is_some() || is_in_line).then(|| runner.clock().elapsed());
    let mut slot = match place {
        Place::Slot(slot) => Some(slot),
        Place::InLine(slot) => slot.await.ok(),
    };
    drop(starting);
    if let Some(ended) = earlier_ended {
        ended.cancelled().await;
    }
    if let Some(since) = waits_since {
        start.at = start.at + runner.clock().elapsed().saturating_sub(since);
    }
    let verdict = if guard.lost.is_cancelled() {
        None
    } else if let Some(slot) = slot.as_mut().filter(|_| !runner.abort.is_cancelled()) {
        let signals = RunSignals {
            // A child token: it also fires on timeout and abort, without a lost lease.
            cancelled: guard.lost.child_token(),
            superseded: guard.superseded.clone(),
        };
        let queue = &runner.queues[slot.begin_run()];
        // Boxed because the future is 4 KiB, and starting the task moves it several times.
        Box::pin(execute(&context, queue, leased, start, signals)).await
    } else {
        Some(Verdict::Release { started: false })
    };
    guard.end_run();
    let Some(verdict) = verdict else { return };
    // If the settlement backlog is full, the job waits here with its slot: no more jobs are
    // claimed. Fails only if the runner was dropped; the lease then expires.
    let Ok(permit) = context.finished.reserve().await else { return };
    // The next job can start before the store answers the settlement.
    drop(slot);
    permit.send(FinishedRun { settlement: Settlement::new(lease, verdict), lease: Some(guard) });
}

/// Waits for the next due time, a hint for a due job, a freed slot if the last claim needed more,
/// the end of the sweep interval, or shutdown.
async fn wait(context: &StoreContext, schedule: &mut ClaimSchedule, hints: &mut Hints) {
    let runner = &context.runner;
    // Created once, so that neither hints nor a clock set back postpone it.
    let mut sweep_interval = runner.clock().sleep(runner.settings.sweep);
    loop {
        let due = async {
            match schedule.next_claim() {
                Some(at) => runner.clock().sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => return,
            () = &mut sweep_interval => return,
            () = runner.slots.freed(context.index), if schedule.saturated => return,
            () = runner.stop.cancelled() => return,
            hint = hints.next() => {
                schedule.apply_hint(hint.due);
                if schedule.next_claim().is_some_and(|at| at <= runner.now()) {
                    return;
                }
            }
        }
    }
}
