//! The shards of the leases that this process holds.
//!
//! Only a shortcut: a lease that is not in the table is looked for in all shards.

use std::collections::HashMap;
use std::sync::Mutex;

use dq_core::sync::lock;
use dq_core::{JobId, Lease, QueueName};

/// More leases than one process holds at a time. Bounds the table for callers that neither settle nor
/// renew what they claim.
const MAX_LEASES: usize = 100_000;

/// The shard of each lease, by job.
#[derive(Debug, Default)]
pub(crate) struct LeaseShards {
    shards: Mutex<HashMap<(QueueName, JobId), u16>>,
}

impl LeaseShards {
    /// Adds a lease.
    pub(crate) fn insert(&self, queue: &QueueName, job: JobId, shard: u16) {
        let mut shards = lock(&self.shards);
        if shards.len() >= MAX_LEASES {
            shards.clear();
        }
        shards.insert((queue.clone(), job), shard);
    }

    /// The shard of a lease, if this process took it.
    pub(crate) fn get(&self, lease: &Lease) -> Option<u16> {
        let shards = lock(&self.shards);
        // Without sharded queues, the key need not be cloned.
        if shards.is_empty() {
            return None;
        }
        shards.get(&(lease.queue.clone(), lease.job)).copied()
    }

    /// Removes leases that have ended.
    pub(crate) fn remove<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let mut shards = lock(&self.shards);
        if shards.is_empty() {
            return;
        }
        for lease in leases {
            shards.remove(&(lease.queue.clone(), lease.job));
        }
    }
}
