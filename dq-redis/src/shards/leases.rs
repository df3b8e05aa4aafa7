//! Remembers the shard of each lease that this process holds, so that settling and renewing call
//! one partition only. Only a cache: a lease that is not in it is looked for in all shards.

use std::collections::HashMap;
use std::sync::Mutex;

use dq_core::sync::lock;
use dq_core::{JobId, Lease, QueueName};

/// Maximum number of entries, more than the leases that a process holds at a time. Bounds the cache
/// for callers that neither settle nor renew what they claim.
const MAX_LEASES: usize = 100_000;

/// The shard of each lease, by queue and job.
#[derive(Debug, Default)]
pub(crate) struct LeaseShards {
    shards: Mutex<HashMap<(QueueName, JobId), u16>>,
}

impl LeaseShards {
    /// Adds a lease. A full cache is cleared first.
    pub(crate) fn insert(&self, queue: &QueueName, job: JobId, shard: u16) {
        let mut shards = lock(&self.shards);
        if shards.len() >= MAX_LEASES {
            shards.clear();
        }
        shards.insert((queue.clone(), job), shard);
    }

    /// The shard of a lease; `None` if it is not in the cache.
    pub(crate) fn get(&self, lease: &Lease) -> Option<u16> {
        let shards = lock(&self.shards);
        // Saves cloning the key in processes without sharded queues.
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
