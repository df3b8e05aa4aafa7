//! A machine as plain data, for whoever has to send it elsewhere.

use bytes::Bytes;

use super::calls::Machine;
use super::store::{Place, Record, Store};
use crate::backend::{FencingToken, Totals};
use crate::model::{DeadReason, Job, JobId, QueueName, Timestamp};

/// All that a machine is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineCopy {
    /// The number of the last job, which orders jobs that are due at the same time.
    pub last_seq: u64,
    /// The last token given out.
    pub last_token: u64,
    /// The queues, each with whether it is paused.
    pub queues: Vec<(QueueName, bool, Totals)>,
    /// The jobs, in no order.
    pub jobs: Vec<Standing>,
}

/// A job and where it is filed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The job.
    pub job: Job,
    /// Its number, which orders jobs that are due at the same time.
    pub seq: u64,
    /// Where it is filed.
    pub place: Whereabouts,
}

/// Where a job is filed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// It waits for its due time, or for a free slot.
    Waiting,
    /// It is leased.
    Leased {
        /// The token of the lease.
        token: FencingToken,
        /// The end of the lease.
        until: Timestamp,
    },
    /// It is dead: why, and since when.
    Dead(DeadReason, Timestamp),
}

impl Machine {
    /// Everything in the machine.
    #[must_use]
    pub fn copy(&self) -> MachineCopy {
        let store = &self.store;
        let queues = store.queues.iter().map(|q| (q.name.clone(), q.paused, q.totals)).collect();
        let jobs = store.records.iter().map(|record| Standing {
            job: record.job.clone(),
            seq: record.seq,
            place: match &record.place {
                Place::Waiting => Whereabouts::Waiting,
                Place::Leased { token, until } => {
                    Whereabouts::Leased { token: *token, until: *until }
                }
                Place::Dead(death) => Whereabouts::Dead(death.0.clone(), death.1),
            },
        });
        MachineCopy {
            last_seq: store.next_seq,
            last_token: store.last_token,
            queues,
            jobs: jobs.collect(),
        }
    }

    /// A machine in the same state as the one that was copied.
    #[must_use]
    pub fn from_copy(copy: MachineCopy) -> Self {
        let mut store = Store::default();
        store.next_seq = copy.last_seq;
        store.last_token = copy.last_token;
        for (name, paused, totals) in copy.queues {
            let number = store.number(&name);
            store.queues[number].paused = paused;
            store.queues[number].totals = totals;
        }
        for Standing { job, seq, place } in copy.jobs {
            let queue = store.number(&job.queue);
            let id = job.id;
            let slot = store.records.insert(Record { job, seq, queue, place: Place::Waiting });
            store.ids.insert(&id, slot);
            match place {
                Whereabouts::Waiting => {
                    store.file_key(slot);
                    store.wait(slot);
                }
                Whereabouts::Leased { token, until } => {
                    store.file_key(slot);
                    store.relet(slot, token, until);
                }
                Whereabouts::Dead(reason, since) => store.bury(slot, reason, since),
            }
        }
        Self { store, ..Self::default() }
    }

    /// Gives the job with this id another payload, in whatever state; for owners that keep something
    /// else there, such as where the payload is.
    pub fn set_payload(&mut self, id: JobId, payload: Bytes) {
        if let Some(slot) = self.store.by_id(id) {
            self.store.records[slot].job.payload = payload;
        }
    }
}
