//! Finds due jobs and starts them: as soon as they are due, never by polling for them.

use std::sync::Arc;
use std::time::Duration;

use super::execute::execute;
use super::slots::{Reservation, Slot};
use super::source::{Ended, Source};
use super::{Event, Machine, Served};
use crate::backend::{
    Backend, ClaimParams, Claimed, LeasedJob, Settlement, Verdict, Wakeups, Want,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{QueueName, Timestamp};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// After this a claim is given up; what it may have leased lapses.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(30);

/// What the pump knows about the time until its next claim.
#[derive(Debug)]
struct Horizon {
    /// The store's clock minus the runner's, in milliseconds, as of the last claim.
    skew: i64,
    /// When something will be due, by the store's clock.
    next_due: Option<Timestamp>,
    /// How long before that the store may be asked.
    ahead: Duration,
    /// Whether the last claim brought nothing: the next then waits for the due time itself.
    was_hasty: bool,
    /// Whether more may be due than there were places for.
    hungry: bool,
}

impl Horizon {
    /// Whether a claim will probably bring something.
    fn expects_jobs(&self, now: Timestamp) -> bool {
        self.hungry || self.next_claim().is_some_and(|at| at <= now)
    }

    /// When to claim what will be due, by the runner's clock.
    fn next_claim(&self) -> Option<Timestamp> {
        let ahead = if self.was_hasty { Duration::ZERO } else { self.ahead };
        self.next_due.map(|due| self.to_local(due) - ahead)
    }

    /// Learns the difference of the clocks from a call that was asked and answered at these times by
    /// the runner's clock, and saw `store` on the store's.
    fn learn(&mut self, asked: Timestamp, store: Timestamp, answered: Timestamp) {
        // How long the call took is no difference of clocks.
        self.skew = if (asked..=answered).contains(&store) {
            0
        } else {
            let took = answered.as_millis().saturating_sub(asked.as_millis());
            store.as_millis().saturating_sub(asked.as_millis().saturating_add(took / 2))
        };
    }

    fn to_store(&self, local: Timestamp) -> Timestamp {
        Timestamp::from_millis(local.as_millis().saturating_add(self.skew))
    }

    fn to_local(&self, store: Timestamp) -> Timestamp {
        Timestamp::from_millis(store.as_millis().saturating_sub(self.skew))
    }
}

/// Claims and starts until the runner is told to stop.
///
/// # Errors
/// `Closed` if the store was closed.
pub(super) async fn run(source: Arc<Source>) -> Result<()> {
    let machine = &source.machine;
    let queues: Vec<QueueName> = machine.served.iter().map(|served| served.queue.clone()).collect();
    let mut wakeups = None;
    let ahead = source.store.claim_ahead();
    let mut horizon = Horizon { skew: 0, next_due: None, ahead, was_hasty: false, hungry: false };
    let mut pause = FIRST_RETRY;
    while !machine.stop.is_cancelled() {
        if wakeups.is_none() {
            // Without hints the sweep finds everything; the next round tries again.
            wakeups = source.store.listen(&queues).await.ok();
        }
        match claim(&source, &mut horizon).await {
            Ok(()) => {
                if pause > FIRST_RETRY {
                    tracing::info!("the store answers again");
                    pause = FIRST_RETRY;
                }
                wait(&source, &mut horizon, wakeups.as_mut()).await;
            }
            Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
            Err(error) => {
                if pause == FIRST_RETRY {
                    tracing::warn!(%error, "the store did not answer a claim; trying again");
                }
                machine.observers.tell(&Event::StoreFailed(&error));
                tokio::select! {
                    () = machine.clock().sleep(pause) => {}
                    () = machine.stop.cancelled() => {}
                }
                // Hints may have been lost with the connection.
                wakeups = None;
                pause = (pause * 2).min(LAST_RETRY);
            }
        }
    }
    Ok(())
}

/// Claims until nothing is due, or no place is free.
async fn claim(source: &Arc<Source>, horizon: &mut Horizon) -> Result<()> {
    let machine = &source.machine;
    if !horizon.expects_jobs(machine.now()) && !look(source, horizon).await? {
        return Ok(());
    }
    loop {
        // While jobs have not even begun, more are of no use; and those that begin together often end
        // together: then one claim takes all their places.
        source.beginning.wait().await;
        machine.slots.gathered().await;
        let reservation = machine.slots.reserve(source.number);
        if reservation.limit == 0 {
            horizon.hungry = true;
            horizon.next_due = None;
            return Ok(());
        }
        let asked = machine.clock().elapsed();
        let wants = wants(machine, &reservation);
        let claimed = match ask(source, &wants, reservation.limit, horizon).await {
            Ok(claimed) => claimed,
            Err(error) => {
                machine.slots.give_back(&reservation, |_| 0);
                return Err(error);
            }
        };
        horizon.hungry = reservation.scarce;
        let Claimed { jobs, next_due, now } = claimed;
        let more = next_due.is_some_and(|due| due <= now);
        let brought = jobs.len();
        horizon.was_hasty = brought == 0;
        start(source, reservation, jobs, asked, horizon).await;
        if machine.stop.is_cancelled() || !more {
            return Ok(());
        }
        if brought == 0 {
            // A store that calls something due and does not give it would be asked without end.
            horizon.next_due = Some(now + Duration::from_millis(1));
            return Ok(());
        }
    }
}

/// Asks when something is due, with no place held meanwhile: an idle look at a slow store must not
/// keep the jobs of another waiting. Says whether something is due now.
async fn look(source: &Source, horizon: &mut Horizon) -> Result<bool> {
    let all = |served: &Served| Want {
        queue: served.queue.clone(),
        max: 0,
        lease_for: served.policy.lease,
    };
    let wants: Vec<_> = source.machine.served.iter().map(all).collect();
    let seen = ask(source, &wants, 0, horizon).await?;
    horizon.hungry = false;
    Ok(seen.next_due.is_some_and(|due| due <= seen.now))
}

/// One claim, and what it tells about the time.
async fn ask(
    source: &Source,
    wants: &[Want],
    limit: usize,
    horizon: &mut Horizon,
) -> Result<Claimed> {
    let machine = &source.machine;
    let asked = machine.now();
    let params = ClaimParams { wants, limit, worker: &machine.name };
    let claimed = tokio::select! {
        claimed = source.store.claim(params) => claimed?,
        () = machine.clock().sleep(CLAIM_TIMEOUT) => {
            let what = format!("the store did not answer a claim for {CLAIM_TIMEOUT:?}");
            return Err(Error::new(ErrorKind::Unavailable, what).operation("claim"));
        }
    };
    horizon.learn(asked, claimed.now, machine.now());
    horizon.next_due = claimed.next_due;
    Ok(claimed)
}

fn wants(machine: &Machine, reservation: &Reservation) -> Vec<Want> {
    let want = |(queue, places): &(usize, usize)| {
        let served = &machine.served[*queue];
        Want { queue: served.queue.clone(), max: *places, lease_for: served.policy.lease }
    };
    reservation.queues.iter().map(want).collect()
}

/// Starts what a claim brought; hands it back if the runner is stopping.
async fn start(
    source: &Arc<Source>,
    reservation: Reservation,
    jobs: Vec<LeasedJob>,
    asked: Duration,
    horizon: &Horizon,
) {
    let machine = &source.machine;
    let mut used = vec![0; machine.served.len()];
    let mut ours = Vec::with_capacity(jobs.len());
    for leased in jobs {
        match machine.numbers.get(&leased.job.queue) {
            Some(queue) => {
                used[*queue] += 1;
                ours.push((*queue, leased));
            }
            None => {
                // Nobody asked for it: a bug of the backend. The lease lapses.
                let error = Error::new(
                    ErrorKind::Internal,
                    format!(
                        "the {} backend gave a job of queue {}, which was not asked for",
                        source.store.name(),
                        leased.job.queue
                    ),
                );
                tracing::error!(%error);
            }
        }
    }
    machine.slots.give_back(&reservation, |queue| used[queue]);
    if ours.is_empty() {
        return;
    }
    machine.observers.tell(&Event::Claimed { jobs: ours.len() });
    for (queue, leased) in ours {
        let slot = Slot::new(Arc::clone(machine), queue);
        if machine.stop.is_cancelled() {
            let settlement =
                Settlement { lease: leased.lease(), verdict: Verdict::Release { started: false } };
            // The settler outlives the pumps.
            let _ = source.ended.send(Ended { settlement, hold: None }).await;
            continue;
        }
        if machine.clock().elapsed() >= asked + machine.served[queue].policy.lease {
            // The answer took as long as the lease: somebody else may have the job by now.
            tracing::warn!(queue = %leased.job.queue, id = %leased.job.id,
                "the lease had ended when it arrived");
            continue;
        }
        let started = horizon.to_store(machine.now());
        let begins = source.beginning.token();
        let job = run_job(Arc::clone(source), slot, leased, asked, started);
        source.handlers.spawn(async {
            drop(begins);
            job.await;
        });
    }
}

async fn run_job(
    source: Arc<Source>,
    slot: Slot,
    leased: LeasedJob,
    asked: Duration,
    started: Timestamp,
) {
    let machine = &source.machine;
    let served = &machine.served[slot.queue()];
    let lease = leased.lease();
    let hold = source.leases.hold(lease.clone(), served.policy.lease, asked);
    // The handler is told of more than the loss of the lease.
    let cancelled = hold.lost.child_token();
    let verdict = tokio::select! {
        biased;
        verdict = execute(machine, served, leased, started, cancelled.clone()) => verdict,
        () = machine.abort.cancelled() => {
            // For what the handler left running elsewhere: threads, child tasks.
            cancelled.cancel();
            Verdict::Release { started: true }
        }
    };
    // If settlements pile up, jobs wait here and keep their places, so that no more are claimed.
    // Fails only if the runner was dropped; then the lease lapses.
    let Ok(way) = source.ended.reserve().await else { return };
    // The next job can start while the store is told about this one.
    drop(slot);
    way.send(Ended { settlement: Settlement { lease, verdict }, hold: Some(hold) });
}

/// Waits for the earliest of: the next due time, a hint, a free place if one was missing, the
/// sweep, the end.
async fn wait(source: &Source, horizon: &mut Horizon, wakeups: Option<&mut Wakeups>) {
    let machine = &source.machine;
    // Made once: neither hints nor a clock that is set back put it off.
    let mut sweep = machine.clock().sleep(machine.settings.sweep);
    let mut hints = wakeups;
    loop {
        let due = async {
            match horizon.next_claim() {
                Some(at) => machine.clock().sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let hint = async {
            match &mut hints {
                Some(hints) => hints.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => return,
            () = &mut sweep => return,
            () = machine.slots.freed(source.number), if horizon.hungry => return,
            () = machine.stop.cancelled() => return,
            hint = hint => {
                // If it is not due yet, the timer is set to it and the store is left alone.
                horizon.next_due = horizon.next_due.into_iter().chain([hint.due]).min();
                horizon.was_hasty = false;
                if horizon.expects_jobs(machine.now()) {
                    return;
                }
            }
        }
    }
}
