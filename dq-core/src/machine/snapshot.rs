//! A machine's state as plain data, to store it or to send it to another process.

use super::gate::Gate;
use super::meter::Sizes;
use super::placement::{JobNotes, JobPlacement, Stored};
use super::state_machine::Machine;
use crate::backend::{Announced, Receipt, Totals};
use crate::model::{HistoryLimits, Job, JobKey, JobView, QueueName, Timestamp};

/// A machine's state, without history limits, lease mode, sizes, pending hints, and
/// the claimers that wait for room: they join again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineSnapshot<R = ()> {
    /// Sequence number of the last inserted job.
    pub last_seq: u64,
    /// Token of the last lease.
    pub last_token: u64,
    /// Each queue's name, whether it is paused, and its totals.
    pub queues: Vec<(QueueName, bool, Totals)>,
    /// The gates of queues that have or had limits.
    pub gates: Vec<(QueueName, Gate)>,
    /// Jobs, in no particular order.
    pub jobs: Vec<JobSnapshot<R>>,
    /// Ended jobs with their ends' sequence numbers, in no particular order.
    pub ended: Vec<(u64, JobView)>,
    /// Sequence number of the latest end.
    pub last_ended: u64,
    /// Pinned ids of ended jobs, and until when.
    pub pins: Vec<(Receipt, Timestamp)>,
    /// Announced runners.
    pub runners: Vec<Announced>,
}

/// A job in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSnapshot<R = ()> {
    /// The job.
    pub job: Job,
    /// The backend's data for it.
    pub stored: R,
    /// Sequence number, which orders jobs with equal times.
    pub seq: u64,
    /// Its placement.
    pub placement: JobPlacement,
    /// Whether the waiting job waits for room in its group.
    pub parked: bool,
    /// Notes for operators; `None` if there are none.
    pub notes: Option<Box<JobNotes>>,
}

impl<R: Stored> Machine<R> {
    /// Copies the complete state.
    pub fn snapshot(&self) -> MachineSnapshot<R> {
        let table = &self.table;
        let queues =
            table.queues.iter().map(|queue| (queue.name.clone(), queue.paused, queue.totals));
        let gates = table.queues.iter().filter_map(|queue| {
            queue.limited.as_ref().map(|limited| (queue.name.clone(), limited.gate))
        });
        let jobs = table.records.entries().map(|(slot, record)| JobSnapshot {
            job: record.job.clone(),
            stored: record.stored.clone(),
            seq: record.seq,
            placement: record.placement.clone(),
            parked: table.is_parked(slot),
            notes: record.notes.clone(),
        });
        MachineSnapshot {
            last_seq: table.last_seq,
            last_token: table.last_token,
            queues: queues.collect(),
            gates: gates.collect(),
            jobs: jobs.collect(),
            ended: self.history.ended().map(|(seq, view)| (seq, view.clone())).collect(),
            last_ended: self.history.last_seq,
            pins: self.history.pins().collect(),
            runners: self.runners.values().cloned().collect(),
        }
    }

    /// Restores a machine from a snapshot.
    ///
    /// Leases expire by time unless you add
    /// [`with_explicit_lease_ends`](Self::with_explicit_lease_ends). No sizes are measured.
    pub fn restore(snapshot: MachineSnapshot<R>, history_limits: HistoryLimits) -> Self {
        let mut machine = Self::new(history_limits);
        let table = &mut machine.table;
        table.last_seq = snapshot.last_seq;
        table.last_token = snapshot.last_token;
        for (name, paused, totals) in snapshot.queues {
            let queue = table.ensure_queue(&name);
            table.queues[queue].paused = paused;
            table.queues[queue].totals = totals;
        }
        for (name, gate) in snapshot.gates {
            let queue = table.ensure_queue(&name);
            *table.queues[queue].gate_mut() = gate;
        }
        for JobSnapshot { job, stored, seq, placement, parked, notes } in snapshot.jobs {
            let id = job.id;
            table.insert(job, stored, seq, placement, notes);
            if parked && let Some(slot) = table.find_id(id) {
                table.park(slot);
            }
        }
        machine.history.last_seq = snapshot.last_ended;
        for (seq, view) in snapshot.ended {
            machine.history.restore(seq, view);
        }
        for (receipt, until) in snapshot.pins {
            machine.history.pin(receipt, until);
        }
        machine.runners =
            snapshot.runners.into_iter().map(|runner| (runner.name.clone(), runner)).collect();
        machine
    }

    /// Starts measuring all contents, now and at each change.
    pub fn measure(&mut self, sizes: Sizes) {
        self.table.measure(sizes);
        self.history.measure(sizes);
    }

    /// Returns the size of all jobs, ended jobs, pins and runners; 0 unless
    /// [measured](Self::measure).
    pub fn stored_bytes(&self) -> u64 {
        let sizes = self.table.sizes();
        let runners = sizes.iter().flat_map(|sizes| self.runners.values().map(sizes.runner));
        self.table.stored_bytes() + self.history.stored_bytes() + runners.sum::<u64>()
    }

    /// Returns the size of the live job with this key; `None` if there is none, 0 unless measured.
    pub fn stored_bytes_of_key(&self, queue: &QueueName, key: &JobKey) -> Option<u64> {
        self.table.find_key(queue, key).map(|slot| self.table.size_of(slot))
    }
}
