//! Starts claimed jobs: each runs once it has a slot and its earlier run has ended.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::ahead::MAX_HOLD;
use super::events::Event;
use super::execute::execute;
use super::leases::LeaseGuard;
use super::shared::RunnerShared;
use super::slots::{Place, QueueIndex, Reservation};
use super::store::{FinishedRun, RunSignals, Start, StoreContext, report_lost};
use crate::backend::{Backend, Lease, LeasedJob, Settlement, Verdict};
use crate::error::{Error, ErrorKind};
use crate::model::Timestamp;

/// Only the runner's clock says so. The store's may differ, so the runner hands the job back; the
/// store ignores that if the lease has expired there, too.
pub(super) const EXPIRED_IN_CLAIM: &str = "the lease had expired when the claim was answered";

const CLAIMED_AGAIN: &str = "the store has granted the job again (did the clock jump, or was the \
                             computer suspended?)";

struct ClaimedJob {
    queue: QueueIndex,
    leased: LeasedJob,
    start: Start,
}

/// Starts a claim's jobs in tasks of their own. Hands back jobs that must not start any more.
///
/// `sent_at` is when the claim was sent, by the lease clock; `now` is the store's time.
pub(super) async fn start_jobs(
    context: &Arc<StoreContext>,
    reservation: &Reservation,
    jobs: Vec<LeasedJob>,
    sent_at: Duration,
    now: Timestamp,
) {
    let runner = &context.runner;
    let (returned, limit) = (jobs.len(), reservation.limit);
    if returned > limit {
        let backend = context.store.name();
        tracing::error!(backend, returned, limit, "a claim returned too many jobs");
    }
    let jobs: Vec<_> = jobs.into_iter().filter_map(|job| claimed_job(context, job, now)).collect();
    let places = runner.slots.fill(reservation, jobs.iter().map(|job| job.queue));
    notify_claimed(runner, &jobs, &places);
    let lease_now = context.leases.clock.now();
    for (job, place) in jobs.into_iter().zip(places) {
        let lease = job.leased.lease();
        let lease_for = runner.queues[job.queue].policy.lease;
        let has_expired = lease_now >= sent_at + lease_for;
        if has_expired {
            tracing::warn!(queue = %lease.queue, id = %lease.job, "{EXPIRED_IN_CLAIM}");
        }
        if has_expired || runner.stop.is_cancelled() {
            hand_back(context, lease).await;
            continue;
        }
        let (guard, earlier) = context.leases.track(lease, lease_for, sent_at);
        if let Some(lost) = earlier.as_ref().and_then(|earlier| earlier.lost.as_ref()) {
            report_lost(runner, lost, CLAIMED_AGAIN);
        }
        let earlier_ended = earlier.map(|run| run.ended);
        let starting = context.starting.token();
        let run = run_job(Arc::clone(context), job, guard, place, earlier_ended, starting);
        context.handlers.spawn(run);
    }
}

/// Returns `None` for a job of a queue that was not claimed. Its lease expires.
fn claimed_job(context: &StoreContext, leased: LeasedJob, now: Timestamp) -> Option<ClaimedJob> {
    let runner = &context.runner;
    let Some(queue) = runner.index_of.get(&leased.job.queue).copied() else {
        let message = format!(
            "the {} backend returned a job of queue {}, which was not claimed",
            context.store.name(),
            leased.job.queue
        );
        let error =
            Error::new(ErrorKind::Internal, message).remedy("report it to the backend's authors");
        tracing::error!(%error);
        runner.observers.notify(&Event::StoreFailed(&error));
        return None;
    };
    let waited_for_slot = runner.queues[queue].starts.is_some() && {
        let due = runner.clock().elapsed().saturating_sub(now.since(leased.job.due));
        runner.slots.has_waited(queue, due)
    };
    Some(ClaimedJob { queue, leased, start: Start { started: now, waited_for_slot } })
}

/// Tells the observers how many application jobs have a slot, and how many wait for one.
fn notify_claimed(runner: &RunnerShared, jobs: &[ClaimedJob], places: &[Place]) {
    let application_jobs =
        jobs.iter().zip(places).filter(|(job, _)| !runner.queues[job.queue].queue.is_reserved());
    let (with_slot, held): (Vec<_>, Vec<_>) =
        application_jobs.partition(|(_, place)| matches!(place, Place::Slot(_)));
    if !with_slot.is_empty() || !held.is_empty() {
        runner.observers.notify(&Event::Claimed { jobs: with_slot.len(), held: held.len() });
    }
}

/// Waits until all claimed jobs have started. Gives back jobs that find no slot in time or before
/// the runner stops; returns false if there were any.
pub(super) async fn all_started(context: &StoreContext) -> bool {
    let runner = &context.runner;
    tokio::select! {
        biased;
        () = context.starting.wait() => return true,
        () = runner.stop.cancelled() => {}
        () = async { runner.clock().sleep(MAX_HOLD).await } => {}
    }
    let given_up = runner.slots.give_up(context.claim_loop);
    context.starting.wait().await;
    given_up == 0
}

async fn hand_back(context: &StoreContext, lease: Lease) {
    let settlement = Settlement::new(lease, Verdict::Release { started: false });
    // Cannot fail: the settle loop outlives the claim loops.
    let _ = context.finished.send(FinishedRun { settlement, lease: None }).await;
}

/// Runs one job once it can start; sends the verdict to the settle loop.
///
/// `earlier_ended` fires when this runner's earlier run of the job has ended. `starting` is dropped
/// when the job has a slot or is given back.
async fn run_job(
    context: Arc<StoreContext>,
    job: ClaimedJob,
    mut guard: LeaseGuard,
    place: Place,
    earlier_ended: Option<CancellationToken>,
    starting: TaskTrackerToken,
) {
    let runner = &context.runner;
    let ClaimedJob { leased, mut start, .. } = job;
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
        start.started = start.started + runner.clock().elapsed().saturating_sub(since);
    }
    let verdict = if guard.lost.is_cancelled() {
        None
    } else if let Some(slot) = slot.as_mut().filter(|_| !runner.abort.is_cancelled()) {
        let signals = RunSignals {
            // A child token: it also fires on timeout and abort, without a lost lease.
            cancelled: guard.lost.child_token(),
            superseded: guard.superseded.clone(),
            may_end_job: Arc::clone(&guard.may_end_job),
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
