//! In which shards this process has taken its leases.
//!
//! Only a help: a lease that is not noted is looked for in all shards.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dq_core::{JobId, Lease, QueueName};

/// More leases than one process holds at once. Who takes leases and neither settles nor renews them
/// would else be remembered for ever.
const MOST: usize = 100_000;

/// Shards of leases, by job.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    taken: Mutex<HashMap<(QueueName, JobId), u16>>,
}

impl Leases {
    /// Notes where a lease was taken.
    pub(crate) fn note(&self, queue: &QueueName, job: JobId, shard: u16) {
        let mut taken = self.taken();
        if taken.len() >= MOST {
            taken.clear();
        }
        taken.insert((queue.clone(), job), shard);
    }

    /// Where a lease was taken, if it was here.
    pub(crate) fn shard(&self, lease: &Lease) -> Option<u16> {
        let taken = self.taken();
        if taken.is_empty() {
            return None;
        }
        taken.get(&(lease.queue.clone(), lease.job)).copied()
    }

    /// Forgets leases that have ended.
    pub(crate) fn forget<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let mut taken = self.taken();
        if taken.is_empty() {
            return;
        }
        for lease in leases {
            taken.remove(&(lease.queue.clone(), lease.job));
        }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<(QueueName, JobId), u16>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
