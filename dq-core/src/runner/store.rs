//! What the loops of one store share.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::claim_time::ClaimTime;
use super::events::Event;
use super::leases::{LeaseGuard, LeaseTracker};
use super::shared::RunnerShared;
use crate::backend::{Checked, Claimed, Lease, Settled, Settlement};
use crate::model::Timestamp;

/// Maximum number of settlements that wait for the store. Runs that end beyond it wait with their
/// slots occupied.
const SETTLEMENT_BACKLOG: usize = 1_024;

/// One store of a runner: the main store or a drained one.
#[derive(Debug)]
pub(super) struct StoreContext {
    pub(super) runner: Arc<RunnerShared>,
    pub(super) store: Arc<Checked>,
    pub(super) leases: Arc<LeaseTracker>,
    /// The index of this store's claim loop in `Slots`.
    pub(super) index: usize,
    /// To the settle loop.
    pub(super) finished: mpsc::Sender<FinishedRun>,
    /// Tracks the tasks that run handlers, of all stores.
    pub(super) handlers: TaskTracker,
    /// Has a token for each claimed job that has no slot yet, or whose task has not started.
    pub(super) starting: TaskTracker,
    /// The store's clock minus the runner's, in milliseconds, as the last claim has measured it.
    pub(super) skew: Mutex<Option<i64>>,
    pub(super) claim_time: ClaimTime,
}

/// The start of a claimed job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// When, by the store's clock.
    pub(super) at: Timestamp,
    /// Whether all slots were busy at some time after the job was due.
    pub(super) waited_for_slot: bool,
}

impl StoreContext {
    pub(super) fn new(
        runner: Arc<RunnerShared>,
        store: Arc<Checked>,
        index: usize,
        handlers: TaskTracker,
    ) -> (Self, mpsc::Receiver<FinishedRun>) {
        let (finished, finished_runs) = mpsc::channel(SETTLEMENT_BACKLOG);
        let leases = Arc::new(LeaseTracker::new(Arc::clone(runner.clock())));
        let starting = TaskTracker::new();
        // `wait` on a closed tracker returns whenever the tracker is empty.
        starting.close();
        let context = Self {
            runner,
            store,
            leases,
            index,
            finished,
            handlers,
            starting,
            skew: Mutex::default(),
            claim_time: ClaimTime::default(),
        };
        (context, finished_runs)
    }
}

/// Signals to a run.
#[derive(Debug)]
pub(super) struct RunSignals {
    /// Fires when the handler should stop.
    pub(super) cancelled: CancellationToken,
    /// Fires when the runner gets another lease of the job: this run ends, and its result would be
    /// stale.
    pub(super) superseded: CancellationToken,
}

/// A finished run. Its lease is renewed until the store has accepted the settlement, unless `lease`
/// is `None` because the handler never started.
#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) settlement: Settlement,
    pub(super) lease: Option<LeaseGuard>,
}

/// Reports the result of a settlement to the observers.
///
/// `repeated`: an earlier call with the same settlement may have taken effect although its answer
/// was lost. `Stale` is then no sign of a lost lease.
pub(super) fn report_settled(
    runner: &RunnerShared,
    settlement: &Settlement,
    settled: Settled,
    repeated: bool,
) {
    let Settlement { lease, verdict } = settlement;
    if settled == Settled::Stale && !repeated {
        tracing::warn!(queue = %lease.queue, id = %lease.job,
            "the lease was lost before the result of its run reached the store, which ignored it");
    }
    runner.observers.notify(&Event::Settled { lease, verdict, settled, repeated });
}

/// Reports the jobs that the store has made dead, because it cannot read them.
pub(super) fn report_quarantined(runner: &RunnerShared, claimed: &Claimed) {
    for (job, reason) in &claimed.quarantined {
        tracing::error!(queue = %job.queue, id = %job.id, %reason, "dead without a run");
        runner.observers.notify(&Event::Dead { job, reason });
    }
}

/// Reports that a lease was lost while the handler ran, and why.
pub(super) fn report_lost(context: &StoreContext, lease: &Lease, cause: &str) {
    tracing::warn!(queue = %lease.queue, id = %lease.job,
        "the lease was lost while the handler ran: {cause}");
    context.runner.observers.notify(&Event::LeaseLost(lease));
}
