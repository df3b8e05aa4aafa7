//! The state of a machine as plain data, to store it or to send it to another process.

use super::state_machine::Machine;
use super::table::JobPlacement;
use crate::backend::Totals;
use crate::model::{Job, QueueName};

/// The complete state of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineSnapshot {
    /// The sequence number of the last inserted job.
    pub last_seq: u64,
    /// The token of the last lease.
    pub last_token: u64,
    /// The queues: name, whether it is paused, totals.
    pub queues: Vec<(QueueName, bool, Totals)>,
    /// The jobs, in no particular order.
    pub jobs: Vec<JobSnapshot>,
}

/// A job in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSnapshot {
    /// The job.
    pub job: Job,
    /// The sequence number of its insertion, which orders jobs with equal times.
    pub seq: u64,
    /// Whether it waits, is leased or is dead.
    pub placement: JobPlacement,
}

impl Machine {
    /// Copies the complete state.
    #[must_use]
    pub fn snapshot(&self) -> MachineSnapshot {
        let table = &self.table;
        let queues = table
            .queues
            .iter()
            .map(|queue| (queue.name.clone(), queue.paused, queue.totals))
            .collect();
        let jobs = table.records.iter().map(|record| JobSnapshot {
            job: record.job.clone(),
            seq: record.seq,
            placement: record.placement.clone(),
        });
        MachineSnapshot {
            last_seq: table.last_seq,
            last_token: table.last_token,
            queues,
            jobs: jobs.collect(),
        }
    }

    /// Creates a machine with the state of a snapshot.
    #[must_use]
    pub fn restore(snapshot: MachineSnapshot) -> Self {
        let mut machine = Self::default();
        let table = &mut machine.table;
        table.last_seq = snapshot.last_seq;
        table.last_token = snapshot.last_token;
        for (name, paused, totals) in snapshot.queues {
            let queue = table.ensure_queue(&name);
            table.queues[queue].paused = paused;
            table.queues[queue].totals = totals;
        }
        for JobSnapshot { job, seq, placement } in snapshot.jobs {
            table.insert(job, seq, placement);
        }
        machine
    }
}
