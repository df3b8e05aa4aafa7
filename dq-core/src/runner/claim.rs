//! The claim loop of one store: it claims due jobs whenever a job may be due and a slot is free.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::claim_timer::{ClaimTimer, HINT_INTERVAL};
use super::events::Event;
use super::flow;
use super::hints::{Hints, Wakeup};
use super::shared::{RETRY, ServedQueue};
use super::slots::{Reservation, Scope, Share};
use super::start::{all_started, start_jobs};
use super::store::{StoreContext, report_quarantined};
use crate::backend::{Backend, ClaimParams, Claimed, Want};
use crate::error::{ErrorKind, Result};
use crate::model::{QueueName, Timestamp};
use crate::sync::lock;

/// Who takes the jobs of a claim loop.
pub(super) trait Claimer: Send {
    /// Claims due jobs until none is due, or nobody takes more.
    fn claim_due(&mut self, timer: &mut ClaimTimer) -> impl Future<Output = Result<()>> + Send;

    /// Waits until more jobs can be taken. Cancellation safe.
    fn freed(&self) -> impl Future<Output = ()> + Send;

    /// Returns the queues to listen to, if they have changed.
    fn changed_queues(&mut self) -> Option<Vec<QueueName>>;
}

/// Takes as many jobs as the runner has free slots.
pub(super) struct SlotClaimer {
    context: Arc<StoreContext>,
    has_listened: bool,
}

impl SlotClaimer {
    pub(super) const fn new(context: Arc<StoreContext>) -> Self {
        Self { context, has_listened: false }
    }
}

impl Claimer for SlotClaimer {
    async fn claim_due(&mut self, timer: &mut ClaimTimer) -> Result<()> {
        claim_within_limits(&self.context, timer).await
    }

    async fn freed(&self) {
        self.context.runner.slots.freed(self.context.claim_loop).await;
    }

    fn changed_queues(&mut self) -> Option<Vec<QueueName>> {
        let served = self.context.runner.queues.iter().map(|served| served.queue.clone());
        (!std::mem::replace(&mut self.has_listened, true)).then(|| served.collect())
    }
}

/// Claims jobs until the runner stops.
///
/// # Errors
/// `Closed` if the store was closed; `Incompatible` if a newer version has taken it over.
pub(super) async fn run(context: Arc<StoreContext>, mut claimer: impl Claimer) -> Result<()> {
    let runner = &context.runner;
    let mut hints = Hints::new(runner, &context.store);
    let mut timer = ClaimTimer::new(context.store.claim_ahead());
    let mut failures = 0;
    while !runner.stop.is_cancelled() {
        match claimer.claim_due(&mut timer).await {
            Ok(()) => {
                if failures > 0 {
                    tracing::info!("the store answers again");
                    failures = 0;
                }
                if let Some(queues) = claimer.changed_queues() {
                    hints.listen_to(queues);
                }
                wait(&context, &claimer, &mut timer, &mut hints).await;
            }
            Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::Incompatible) => {
                return Err(error);
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, "a claim failed; trying again");
                }
                runner.observers.notify(&Event::StoreFailed(&error));
                tokio::select! {
                    () = runner.clock().sleep(RETRY.delay(failures, 0.0)) => {}
                    () = runner.stop.cancelled() => {}
                }
                hints.renew();
            }
        }
    }
    Ok(())
}

/// What a claim left in the store.
pub(super) enum Left {
    NothingDue,
    DueJobs,
    /// A job is due at this store time, but the claim returned none.
    WithheldJob(Timestamp),
}

impl Left {
    pub(super) fn after(is_empty: bool, next_due: Option<Timestamp>, now: Timestamp) -> Self {
        match next_due {
            Some(due) if due <= now && is_empty => Self::WithheldJob(now),
            Some(due) if due <= now => Self::DueJobs,
            _ => Self::NothingDue,
        }
    }
}

/// Before the first claim, declares the limits of the queues.
async fn claim_within_limits(context: &Arc<StoreContext>, timer: &mut ClaimTimer) -> Result<()> {
    if !context.has_declared.load(Ordering::Relaxed) {
        flow::declare(&context.runner, &context.store).await?;
        context.has_declared.store(true, Ordering::Relaxed);
    }
    claim_due(context, timer).await
}

async fn claim_due(context: &Arc<StoreContext>, timer: &mut ClaimTimer) -> Result<()> {
    let runner = &context.runner;
    if !timer.expects_jobs(runner.now()) && !is_job_due(context, timer).await? {
        return Ok(());
    }
    let mut last_scope = Scope::All;
    loop {
        // Jobs that start together often end together; one claim then fills all their slots.
        runner.slots.wait_for_batch().await;
        let reservation = reserve(context, timer, last_scope);
        if reservation.limit == 0 {
            timer.no_slot_is_free();
            // The wait for a slot does not count as the store's time.
            context.claim_time.give_up();
            return Ok(());
        }
        last_scope = reservation.scope;
        let left = claim_and_start(context, timer, &reservation).await?;
        if runner.stop.is_cancelled() {
            return Ok(());
        }
        if last_scope == Scope::Own {
            continue;
        }
        match left {
            Left::DueJobs => timer.no_job_withheld(),
            Left::NothingDue => {
                timer.no_job_withheld();
                return Ok(());
            }
            Left::WithheldJob(now) => {
                timer.job_withheld(now, runner.settings.sweep);
                return Ok(());
            }
        }
    }
}

fn reserve(context: &StoreContext, timer: &mut ClaimTimer, last_scope: Scope) -> Reservation {
    let runner = &context.runner;
    let expects_own = timer.expects_own_jobs(runner.now());
    let reservation = runner.slots.reserve(context.claim_loop, expects_own, last_scope);
    timer.own_full = reservation.own_full;
    timer.reserve_free = reservation.reserve_free;
    reservation
}

async fn claim_and_start(
    context: &Arc<StoreContext>,
    timer: &mut ClaimTimer,
    reservation: &Reservation,
) -> Result<Left> {
    let runner = &context.runner;
    // The granted leases do not expire before this time plus their duration.
    let sent_at = context.leases.clock.now();
    let want = |share: &Share| {
        let served = &runner.queues[share.queue];
        Want::new(served.queue.clone(), share.jobs(), served.policy.lease).starting(share.slots())
    };
    let wants: Vec<_> = reservation.queues.iter().map(want).collect();
    let claimed = match claim(context, &wants, reservation.limit, timer).await {
        Ok(claimed) => claimed,
        Err(error) => {
            runner.slots.fill(reservation, []);
            timer.own_slots_unclaimed();
            return Err(error);
        }
    };
    let Claimed { jobs, next_due, now, .. } = claimed;
    let is_empty = jobs.is_empty();
    timer.saturated = reservation.saturated;
    timer.last_claim_empty = is_empty;
    if reservation.scope != Scope::Shared && !reservation.own_full {
        // A job due but not returned is either withheld or needs a shared slot. As the next job for
        // an own slot it would trigger claims in a busy loop.
        let is_known = next_due.is_none_or(|due| due > now || !is_empty);
        let only_reserves = reservation.scope == Scope::Own && reservation.reserve_free;
        let look_again = only_reserves.then(|| now + HINT_INTERVAL);
        timer.own_slots_claimed(if is_known { next_due } else { look_again }, now);
    }
    let started = timer.to_store(runner.now());
    start_jobs(context, reservation, jobs, sent_at, started).await;
    // Another process may be slow to claim the jobs that were given back.
    timer.saturated |= !all_started(context).await;
    Ok(Left::after(is_empty, next_due, now))
}

/// Claims zero jobs to learn the next due time; returns whether a job is due now.
///
/// This needs no slots: a slow store's sweep does not delay another store's jobs.
async fn is_job_due(context: &StoreContext, timer: &mut ClaimTimer) -> Result<bool> {
    let want = |served: &ServedQueue| Want::new(served.queue.clone(), 0, served.policy.lease);
    let wants: Vec<_> = context.runner.queues.iter().map(want).collect();
    let claimed = claim(context, &wants, 0, timer).await?;
    timer.saturated = false;
    let is_due = claimed.next_due.is_some_and(|due| due <= claimed.now);
    if !is_due {
        timer.no_job_withheld();
    }
    Ok(is_due)
}

/// Makes a claim and measures it. If it goes unanswered, the leases it granted expire.
pub(super) async fn claim(
    context: &StoreContext,
    wants: &[Want],
    limit: usize,
    timer: &mut ClaimTimer,
) -> Result<Claimed> {
    let runner = &context.runner;
    let sent = runner.now();
    let params = ClaimParams::new(wants, limit, &runner.name);
    context.claim_time.begin(runner.clock().elapsed());
    let claimed = runner.call("claim", context.store.claim(params)).await?;
    context.claim_time.end(runner.clock().elapsed());
    timer.claim_answered(sent, runner.now(), claimed.now, claimed.next_due);
    *lock(&context.skew) = Some(timer.skew);
    report_quarantined(runner, &claimed);
    Ok(claimed)
}

async fn wait(
    context: &StoreContext,
    claimer: &impl Claimer,
    timer: &mut ClaimTimer,
    hints: &mut Hints,
) {
    let runner = &context.runner;
    // Created once, so that neither hints nor a clock set back postpone it.
    let mut sweep_interval = runner.clock().sleep(runner.settings.sweep);
    loop {
        let next_claim = async {
            match timer.next_claim() {
                Some(time) => runner.clock().sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = next_claim => return,
            () = &mut sweep_interval => return,
            () = claimer.freed(), if timer.saturated => return,
            () = runner.stop.cancelled() => return,
            wakeup = hints.next() => match wakeup {
                Wakeup::Subscribed => return,
                Wakeup::Hint(hint) => {
                    timer.apply_hint(hint.due);
                    if timer.next_claim().is_some_and(|time| time <= runner.now()) {
                        return;
                    }
                }
            },
        }
    }
}
