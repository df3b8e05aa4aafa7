//! Routes batch items, each about one job, to their partitions.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::{JobRef, Lease, NewJob, QueueName, Renewal, Reschedule, Result, Settlement, Target};
use futures_util::future::BoxFuture;

use crate::batch::{self, Chunk, Item, Request};
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::QueuePartitions;
use crate::store::Store;

pub(crate) trait Routed: Item {
    /// The call stores a new job, so the queue needs the shard count in the settings.
    const IS_NEW: bool = false;

    /// The first shard to call, and the shards to try if the job is not there.
    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>);
}

impl Routed for NewJob {
    const IS_NEW: bool = true;

    fn shards(&self, partitions: &QueuePartitions, _: &LeaseShards) -> (u16, Vec<u16>) {
        (partitions.shard_for(self.id, self.key.as_ref()), Vec::new())
    }
}

impl Routed for JobRef {
    fn shards(&self, partitions: &QueuePartitions, _: &LeaseShards) -> (u16, Vec<u16>) {
        partitions.candidates(&self.target)
    }
}

impl Routed for Reschedule {
    fn shards(&self, partitions: &QueuePartitions, _: &LeaseShards) -> (u16, Vec<u16>) {
        partitions.candidates(&self.job.target)
    }
}

impl Routed for Settlement {
    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>) {
        lease_shards(&self.lease, partitions, leases)
    }
}

impl Routed for Renewal {
    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>) {
        lease_shards(&self.lease, partitions, leases)
    }
}

fn lease_shards(
    lease: &Lease,
    partitions: &QueuePartitions,
    leases: &LeaseShards,
) -> (u16, Vec<u16>) {
    match leases.get(lease) {
        // `partitions` may be a guess of one shard, see `partitions_of`, without this shard. Its
        // closed unsharded partition then refuses the call, and the lease is routed again with the
        // stored shard count.
        Some(shard) if shard < partitions.shards() => (shard, Vec::new()),
        _ => partitions.candidates(&Target::Id(lease.job)),
    }
}

impl Store {
    /// Calls the most likely partition of each item, then, for absent jobs, all others where the
    /// job may be. Returns the answers in order. `is_absent` tells whether an answer means an
    /// absent job. If `call` returns `None`, the partition is closed, and the items are routed
    /// again.
    ///
    /// # Errors
    /// The errors of [`Self::partitions_of`] or, for new jobs, [`Self::partitions_to_fill`]; errors
    /// of the calls; `Unavailable` if the shard count keeps changing. Items may have taken effect
    /// before any error, except if the first partition lookup fails.
    pub(crate) async fn route<'a, I: Routed, T>(
        &'a self,
        operation: &'static str,
        items: &'a [I],
        is_absent: impl Fn(&T) -> bool,
        call: impl Fn(Chunk<'a, I>) -> BoxFuture<'a, Result<Option<Vec<T>>>>,
    ) -> Result<Vec<T>> {
        let mut answers: Vec<Option<T>> = items.iter().map(|_| None).collect();
        let mut unanswered: Vec<usize> = (0..items.len()).collect();
        let mut retries = self.reshard_retries();
        while !unanswered.is_empty() {
            retries.next(operation).await?;
            let mut queues: HashMap<&QueueName, Arc<QueuePartitions>> = HashMap::new();
            for &index in &unanswered {
                let queue = items[index].queue();
                if !queues.contains_key(queue) {
                    let partitions = if I::IS_NEW {
                        self.partitions_to_fill(operation, queue).await?
                    } else {
                        self.partitions_of(operation, queue).await?
                    };
                    queues.insert(queue, partitions);
                }
            }
            let (mut first, mut others) = (Vec::with_capacity(unanswered.len()), Vec::new());
            for &index in &unanswered {
                let item = &items[index];
                let partitions = &queues[item.queue()];
                let (shard, more) = item.shards(partitions, &self.leases);
                first.push(Request { index, item, partition: partitions.shard(shard) });
                others.extend(more.into_iter().map(|shard| Request {
                    index,
                    item,
                    partition: partitions.shard(shard),
                }));
            }
            let mut refused = Vec::new();
            for mut requests in [first, others] {
                requests.retain(|request| answers[request.index].as_ref().is_none_or(&is_absent));
                for (index, answer) in batch::run(requests, &call).await? {
                    match answer {
                        None => refused.push(index),
                        Some(answer) if answers[index].as_ref().is_none_or(&is_absent) => {
                            answers[index] = Some(answer);
                        }
                        Some(_) => {}
                    }
                }
            }
            refused.retain(|index| answers[*index].as_ref().is_none_or(&is_absent));
            refused.sort_unstable();
            refused.dedup();
            unanswered = refused;
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
