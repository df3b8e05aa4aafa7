//! Remembers the shards of this process's leases. Other leases are looked up in all shards.

use std::collections::HashMap;
use std::sync::Mutex;

use dq_core::sync::lock;
use dq_core::{JobId, Lease, QueueName, Target};

use super::partitions::QueuePartitions;

/// Bounds the cache for callers that neither settle nor renew their claims.
const MAX_LEASES: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct LeaseShards {
    shards: Mutex<HashMap<(QueueName, JobId), u16>>,
}

impl LeaseShards {
    /// A full cache is cleared first.
    pub(crate) fn insert(&self, queue: &QueueName, job: JobId, shard: u16) {
        let mut shards = lock(&self.shards);
        if shards.len() >= MAX_LEASES {
            shards.clear();
        }
        shards.insert((queue.clone(), job), shard);
    }

    /// The first shard to try for a lease, and the others.
    pub(crate) fn candidates(
        &self,
        lease: &Lease,
        partitions: &QueuePartitions,
    ) -> (u16, Vec<u16>) {
        let shards = lock(&self.shards);
        let shard = shards.get(&(lease.queue.clone(), lease.job)).copied();
        match shard {
            // `partitions` may be the guess of `partitions_of`, without this shard. Its closed
            // partition then refuses the call, and the lease is routed again.
            Some(shard) if shard < partitions.shards() => (shard, Vec::new()),
            _ => partitions.candidates(&Target::Id(lease.job)),
        }
    }

    pub(crate) fn remove<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let mut shards = lock(&self.shards);
        for lease in leases {
            shards.remove(&(lease.queue.clone(), lease.job));
        }
    }
}
