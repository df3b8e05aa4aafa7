//! Finds due jobs and starts them: as soon as they are due, never by polling for them.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::execute::execute;
use super::slots::{BATCH, Reservation, Slot};
use super::source::{Ended, Source, tell};
use super::{Event, Machine, RanDue};
use crate::backend::{
    Backend, Checked, ClaimParams, Claimed, LeasedJob, Settlement, Verdict, Wakeups, Want,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{QueueName, Timestamp};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// What the pump knows about the time until its next claim.
#[derive(Debug)]
struct Horizon {
    /// The store's clock minus the runner's, in milliseconds, as of the last claim.
    skew: i64,
    /// When something will be due, by the store's clock.
    next_due: Option<Timestamp>,
    /// Whether more may be due than there were places for.
    hungry: bool,
}

impl Horizon {
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
    let mut horizon = Horizon { skew: 0, next_due: None, hungry: false };
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
    loop {
        let reservation = machine.slots.reserve();
        if reservation.limit == 0 {
            horizon.hungry = true;
            horizon.next_due = None;
            machine.slots.give_back(&reservation, |_| 0);
            return Ok(());
        }
        let asked = machine.now();
        let wants = wants(machine, &reservation);
        let params = ClaimParams { wants: &wants, limit: reservation.limit, worker: &machine.name };
        let claimed = match source.store.claim(params).await {
            Ok(claimed) => claimed,
            Err(error) => {
                machine.slots.give_back(&reservation, |_| 0);
                return Err(error);
            }
        };
        horizon.skew = claimed.now.as_millis() - machine.now().as_millis();
        horizon.next_due = claimed.next_due;
        horizon.hungry = reservation.scarce;
        let Claimed { jobs, next_due, now } = claimed;
        let more = next_due.is_some_and(|due| due <= now);
        let brought = jobs.len();
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
    asked: Timestamp,
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
        let started = horizon.to_store(machine.now());
        source.handlers.spawn(run_job(Arc::clone(source), slot, leased, asked, started));
    }
}

async fn run_job(
    source: Arc<Source>,
    slot: Slot,
    leased: LeasedJob,
    asked: Timestamp,
    started: Timestamp,
) {
    let machine = &source.machine;
    let served = &machine.served[slot.queue()];
    let lease = leased.lease();
    let hold = source.leases.hold(lease.clone(), served.policy.lease, asked);
    let verdict = tokio::select! {
        biased;
        verdict = execute(machine, served, leased, started, hold.lost.clone()) => verdict,
        () = machine.abort.cancelled() => {
            // For what the handler left running elsewhere: threads, child tasks.
            hold.lost.cancel();
            Verdict::Release { started: true }
        }
    };
    // The next job can start while the store is told about this one.
    drop(slot);
    let ended = Ended { settlement: Settlement { lease, verdict }, hold: Some(hold) };
    // Fails only if the runner was dropped; then the lease lapses.
    let _ = source.ended.send(ended).await;
}

/// Waits for the earliest of: the next due time, a hint, a free place if one was missing, the
/// sweep, the end.
async fn wait(source: &Source, horizon: &mut Horizon, wakeups: Option<&mut Wakeups>) {
    let machine = &source.machine;
    let sweep = machine.now() + machine.settings.sweep;
    let mut hints = wakeups;
    loop {
        let due = horizon.next_due.map_or(sweep, |due| horizon.to_local(due).min(sweep));
        let hint = async {
            match &mut hints {
                Some(hints) => hints.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = machine.clock().sleep_until(due) => return,
            () = machine.slots.freed(source.number), if horizon.hungry => {
                // Others that end in this moment free their places too, for one claim.
                tokio::task::yield_now().await;
                return;
            }
            () = machine.stop.cancelled() => return,
            hint = hint => {
                if horizon.to_local(hint.due) <= machine.now() {
                    return;
                }
                // Not due yet: the timer is set to it, and the store is left alone.
                horizon.next_due = horizon.next_due.into_iter().chain([hint.due]).min();
            }
        }
    }
}

/// Runs what is due here and now, one after the other. See [`super::Runner::run_due`].
pub(super) async fn run_due(machine: &Machine, store: &Checked) -> Result<RanDue> {
    let mut ran = RanDue { jobs: 0, next_due: None };
    let wants: Vec<_> = machine
        .served
        .iter()
        .map(|served| Want {
            queue: served.queue.clone(),
            max: BATCH,
            lease_for: served.policy.lease,
        })
        .collect();
    loop {
        let params = ClaimParams { wants: &wants, limit: BATCH, worker: &machine.name };
        let mut claimed = store.claim(params).await?;
        ran.next_due = claimed.next_due;
        if claimed.jobs.is_empty() {
            return Ok(ran);
        }
        claimed.jobs.sort_by(|a, b| match a.job.due.cmp(&b.job.due) {
            Ordering::Equal => a.job.created.cmp(&b.job.created),
            unequal => unequal,
        });
        for leased in claimed.jobs {
            let Some(served) = machine.served(&leased.job.queue) else { continue };
            let lease = leased.lease();
            let verdict =
                execute(machine, served, leased, claimed.now, CancellationToken::new()).await;
            let settlements = [Settlement { lease, verdict }];
            let answers = store.settle(&settlements).await?;
            for answer in answers {
                tell(machine, &settlements[0], answer);
            }
            ran.jobs += 1;
        }
    }
}
