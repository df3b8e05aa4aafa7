//! One store as the loops of a runner see it.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::leases::{Hold, Leases};
use super::{Event, Machine};
use crate::backend::{Checked, Settled, Settlement};

/// Settlements that may wait for the store before handlers have to.
const SETTLEMENTS: usize = 1_024;

/// One store that jobs come from: the backend, or one that is drained.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) machine: Arc<Machine>,
    pub(super) store: Arc<Checked>,
    pub(super) leases: Arc<Leases>,
    pub(super) number: usize,
    pub(super) ended: mpsc::Sender<Ended>,
    pub(super) handlers: TaskTracker,
    /// A token for each job that was brought and has not begun.
    pub(super) beginning: TaskTracker,
}

impl Source {
    pub(super) fn new(
        machine: Arc<Machine>,
        store: Arc<Checked>,
        number: usize,
        handlers: TaskTracker,
    ) -> (Self, mpsc::Receiver<Ended>) {
        let (ended, settlements) = mpsc::channel(SETTLEMENTS);
        let (leases, beginning) = (Arc::default(), TaskTracker::new());
        // Closed trackers can be waited for whenever they are empty.
        beginning.close();
        let source = Self { machine, store, leases, number, ended, handlers, beginning };
        (source, settlements)
    }
}

/// How a run ended. The lease is kept until the store has been told.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) settlement: Settlement,
    pub(super) hold: Option<Hold>,
}

/// Tells those who watch what the store answered. `unsure`: an earlier call may have taken effect,
/// with its answer lost; then `Stale` is what the second one has to answer.
pub(super) fn tell(machine: &Machine, settlement: &Settlement, answer: Settled, unsure: bool) {
    let Settlement { lease, verdict } = settlement;
    if answer == Settled::Stale && !unsure {
        tracing::warn!(queue = %lease.queue, id = %lease.job,
            "the handler ended after its lease was lost; the store took no notice");
    }
    machine.observers.tell(&Event::Settled { lease, verdict, answer });
}
