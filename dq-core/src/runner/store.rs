//! The state shared by the loops of one store.

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

/// Maximum number of settlements waiting for the store. Runs that end beyond it keep their slots
/// while they wait.
const SETTLEMENT_BACKLOG: usize = 1_024;

/// One store: the main store or a drained one.
#[derive(Debug)]
pub(super) struct StoreContext {
    pub(super) runner: Arc<RunnerShared>,
    pub(super) store: Arc<Checked>,
    pub(super) leases: Arc<LeaseTracker>,
    /// The claim loop index in `Slots`.
    pub(super) index: usize,
    pub(super) finished: mpsc::Sender<FinishedRun>,
    /// For all stores together.
    pub(super) handlers: TaskTracker,
    /// A token per claimed job without a slot or a started task.
    pub(super) starting: TaskTracker,
    /// Store clock minus runner clock in milliseconds.
    pub(super) skew: Mutex<Option<i64>>,
    pub(super) claim_time: ClaimTime,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// By the store's clock.
    pub(super) at: Timestamp,
    /// All slots were busy at some time after the due time.
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
        // On a closed tracker, `wait` returns whenever the tracker is empty.
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

#[derive(Debug)]
pub(super) struct RunSignals {
    pub(super) cancelled: CancellationToken,
    /// Fires when the runner gets another lease for the job: this run's result would be stale.
    pub(super) superseded: CancellationToken,
}

/// The lease is renewed until the store accepts the settlement; `None` if the handler never
/// started.
#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) settlement: Settlement,
    pub(super) lease: Option<LeaseGuard>,
}

/// `repeated`: an earlier call may have taken effect although its answer was lost. `LostLease` may
/// then mean that.
pub(super) fn report_settled(
    runner: &RunnerShared,
    settlement: &Settlement,
    settled: Settled,
    repeated: bool,
) {
    let Settlement { lease, verdict } = settlement;
    if settled == Settled::LostLease && !repeated {
        tracing::warn!(queue = %lease.queue, id = %lease.job,
            "the lease was lost before the result of its run reached the store, which ignored it");
    }
    runner.observers.notify(&Event::Settled { lease, verdict, settled, repeated });
}

pub(super) fn report_quarantined(runner: &RunnerShared, claimed: &Claimed) {
    for (job, reason) in &claimed.quarantined {
        tracing::error!(queue = %job.queue, id = %job.id, %reason, "dead without a run");
        runner.observers.notify(&Event::Dead { job, reason });
    }
}

pub(super) fn report_lost(context: &StoreContext, lease: &Lease, cause: &str) {
    tracing::warn!(queue = %lease.queue, id = %lease.job,
        "the lease was lost while the handler ran: {cause}");
    context.runner.observers.notify(&Event::LeaseLost(lease));
}
