//! What the loops of one store share.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::events::Event;
use super::leases::{LeaseGuard, LeaseTracker};
use super::shared::RunnerShared;
use crate::backend::{Checked, Settled, Settlement};

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
    /// Has a token for each job that was claimed and whose task has not started.
    pub(super) starting: TaskTracker,
}

impl StoreContext {
    pub(super) fn new(
        runner: Arc<RunnerShared>,
        store: Arc<Checked>,
        index: usize,
        handlers: TaskTracker,
    ) -> (Self, mpsc::Receiver<FinishedRun>) {
        let (finished, finished_runs) = mpsc::channel(SETTLEMENT_BACKLOG);
        let (leases, starting) = (Arc::default(), TaskTracker::new());
        // `wait` on a closed tracker returns whenever the tracker is empty.
        starting.close();
        let context = Self { runner, store, leases, index, finished, handlers, starting };
        (context, finished_runs)
    }
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
            "the handler ended after its lease was lost; the store ignored its result");
    }
    runner.observers.notify(&Event::Settled { lease, verdict, settled });
}
