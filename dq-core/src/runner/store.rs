//! The state shared by the loops of one store, and the reports that several of them make.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::claim_time::ClaimTime;
use super::events::Event;
use super::leases::{LeaseGuard, LeaseTracker};
use super::shared::{RunnerShared, ServedQueue};
use super::verdict::VerdictRules;
use crate::backend::{Checked, Claimed, Lease, Settled, Settlement, Verdict};
use crate::model::Timestamp;

/// Maximum number of settlements waiting for the store. Runs that end beyond it keep their slots
/// while they wait.
const SETTLEMENT_BACKLOG: usize = 1_024;

#[derive(Debug)]
pub(super) struct StoreContext {
    pub(super) runner: Arc<RunnerShared>,
    pub(super) store: Arc<Checked>,
    pub(super) leases: Arc<LeaseTracker>,
    /// Identifies the store's claim loop in [`Slots`](super::slots::Slots).
    pub(super) claim_loop: usize,
    pub(super) finished: mpsc::Sender<FinishedRun>,
    pub(super) handlers: TaskTracker,
    /// Holds a token per claimed job that has no slot yet.
    pub(super) starting: TaskTracker,
    /// Store clock minus runner clock in milliseconds.
    pub(super) skew: Mutex<Option<i64>>,
    pub(super) claim_time: ClaimTime,
    /// Set once this process has declared the limits of its queues.
    pub(super) has_declared: AtomicBool,
}

/// When and how a job starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// When the run starts, by the store's clock.
    pub(super) started: Timestamp,
    pub(super) waited_for_slot: bool,
}

/// What to do with a claimed job.
pub(super) enum Before {
    /// The handler runs.
    Runs,
    /// The job does not run now; `None` if the lease was lost meanwhile.
    Ends(Option<Verdict>),
}

#[derive(Debug)]
pub(super) struct RunSignals {
    pub(super) cancelled: CancellationToken,
    /// Fires when the runner gets another lease for the job: the store would ignore this run's
    /// result.
    pub(super) superseded: CancellationToken,
    /// See [`LeaseGuard::may_end_job`].
    pub(super) may_end_job: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) settlement: Settlement,
    /// Renews the lease until the store accepts the settlement. `None` if the handler never
    /// started.
    pub(super) lease: Option<LeaseGuard>,
}

impl StoreContext {
    /// Also returns the receiver of [`finished`](Self::finished), for the settle loop.
    pub(super) fn new(
        runner: Arc<RunnerShared>,
        store: Arc<Checked>,
        claim_loop: usize,
        handlers: TaskTracker,
    ) -> (Arc<Self>, mpsc::Receiver<FinishedRun>) {
        let (finished, finished_runs) = mpsc::channel(SETTLEMENT_BACKLOG);
        let leases = Arc::new(LeaseTracker::new(Arc::clone(runner.clock())));
        let starting = TaskTracker::new();
        // On a closed tracker, `wait` returns whenever the tracker is empty.
        starting.close();
        let context = Self {
            runner,
            store,
            leases,
            claim_loop,
            finished,
            handlers,
            starting,
            skew: Mutex::default(),
            claim_time: ClaimTime::default(),
            has_declared: AtomicBool::new(false),
        };
        (Arc::new(context), finished_runs)
    }

    pub(super) fn verdict_rules<'a>(&'a self, served: &'a ServedQueue) -> VerdictRules<'a> {
        VerdictRules {
            policy: &served.policy,
            escalation: &served.handler.escalation,
            schema_version: served.handler.schema_version,
            limits: &self.runner.client.limits,
            entropy: &self.runner.client.environment.entropy,
            store: &self.store,
        }
    }
}

/// `repeated` has the meaning of [`Event::Settled::repeated`].
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

pub(super) fn report_lost(runner: &RunnerShared, lease: &Lease, cause: &str) {
    tracing::warn!(queue = %lease.queue, id = %lease.job,
        "the lease was lost while the handler ran: {cause}");
    runner.observers.notify(&Event::LeaseLost(lease));
}
