//! Batch calls: routes the items, each about one job, to their partitions, cuts each partition's
//! items into *chunks* of one call each, and makes several calls at a time.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::{QueueName, Result, async_trait};
use futures_util::{StreamExt, stream};

use crate::keys::Partition;
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

/// Maximum items per call, so that no script runs longer than a few milliseconds.
pub(crate) const CHUNK: usize = 100;

/// Maximum bytes per call, unless a single item is larger. Items of size 0 are not counted.
const CHUNK_BYTES: usize = 512 * 1024;

/// Approximate bytes per job in a call besides payload and headers.
pub(crate) const JOB_BYTES: usize = 64;

/// Maximum calls of one batch that wait for a reply.
const CONCURRENT_CALLS: usize = 8;

#[async_trait]
pub(crate) trait Item: Sync + Sized {
    type Answer: Send;

    /// The call stores a new job, so the queue needs the shard count in the settings.
    const IS_NEW: bool = false;

    fn queue(&self) -> &QueueName;

    /// 0 for items that are always small.
    fn size_bytes(&self) -> usize {
        0
    }

    /// The first shard to call, and the shards to try if the job is not there.
    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>);

    fn is_absent(answer: &Self::Answer) -> bool;

    /// `None` if the partition is closed: the items are routed again.
    async fn call(
        backend: &RedisBackend,
        chunk: &Chunk<'_, Self>,
    ) -> Result<Option<Vec<Self::Answer>>>;
}

struct Request<'a, I> {
    index: usize,
    item: &'a I,
    partition: Arc<Partition>,
}

pub(crate) struct Chunk<'a, I> {
    pub(crate) partition: Arc<Partition>,
    pub(crate) items: Vec<&'a I>,
    indices: Vec<usize>,
    bytes: usize,
}

impl<I> Chunk<'_, I> {
    fn new(partition: &Arc<Partition>) -> Self {
        let partition = Arc::clone(partition);
        Self { partition, items: Vec::new(), indices: Vec::new(), bytes: 0 }
    }
}

/// Keeps the order within a partition.
fn chunks<I: Item>(requests: Vec<Request<'_, I>>) -> Vec<Chunk<'_, I>> {
    let mut full = Vec::new();
    let mut filling: Vec<Chunk<'_, I>> = Vec::new();
    let mut position_of: HashMap<*const Partition, usize> = HashMap::new();
    for Request { index, item, partition } in requests {
        let position = *position_of.entry(Arc::as_ptr(&partition)).or_insert_with(|| {
            filling.push(Chunk::new(&partition));
            filling.len() - 1
        });
        let (chunk, bytes) = (&mut filling[position], item.size_bytes());
        if chunk.items.len() == CHUNK || chunk.bytes + bytes > CHUNK_BYTES && chunk.bytes > 0 {
            full.push(std::mem::replace(chunk, Chunk::new(&partition)));
        }
        chunk.items.push(item);
        chunk.indices.push(index);
        chunk.bytes += bytes;
    }
    full.extend(filling);
    full
}

impl RedisBackend {
    /// Calls the most likely partition of each item, then, for absent jobs, all others where the
    /// job may be. Returns the answers in order.
    /// Errors: The errors of [`Self::partitions_of`] or, for new jobs,
    /// [`Self::partitions_to_fill`]; errors of the calls; `Unavailable` if the shard count keeps
    /// changing. Items may have taken effect before any error, except if the first partition lookup
    /// fails.
    pub(crate) async fn run_batch<I: Item>(&self, items: &[I]) -> Result<Vec<I::Answer>> {
        let mut answers: Vec<Option<I::Answer>> = items.iter().map(|_| None).collect();
        let mut unanswered: Vec<usize> = (0..items.len()).collect();
        let mut attempts = self.attempts();
        while !unanswered.is_empty() {
            attempts.next().await?;
            let mut queues: HashMap<&QueueName, Arc<QueuePartitions>> = HashMap::new();
            let (mut first, mut others) = (Vec::with_capacity(unanswered.len()), Vec::new());
            for index in unanswered {
                let item = &items[index];
                let queue = item.queue();
                if !queues.contains_key(queue) {
                    let partitions = if I::IS_NEW {
                        self.partitions_to_fill(queue).await?
                    } else {
                        self.partitions_of(queue).await?
                    };
                    queues.insert(queue, partitions);
                }
                let partitions = &queues[queue];
                let (shard, more) = item.shards(partitions, &self.leases);
                let request = |shard| {
                    let partition = Arc::clone(partitions.shard(shard));
                    Request { index, item, partition }
                };
                first.push(request(shard));
                others.extend(more.into_iter().map(request));
            }
            let is_open = |answer: &Option<I::Answer>| answer.as_ref().is_none_or(I::is_absent);
            let mut refused = Vec::new();
            for mut requests in [first, others] {
                requests.retain(|request| is_open(&answers[request.index]));
                let chunks = chunks(requests);
                let calls: Vec<_> = chunks.iter().map(|chunk| I::call(self, chunk)).collect();
                let mut replies = stream::iter(calls).buffered(CONCURRENT_CALLS);
                for chunk in &chunks {
                    let Some(reply) = replies.next().await.transpose()?.flatten() else {
                        refused.extend(&chunk.indices);
                        continue;
                    };
                    for (index, answer) in chunk.indices.iter().zip(reply) {
                        if is_open(&answers[*index]) {
                            answers[*index] = Some(answer);
                        }
                    }
                }
            }
            refused.retain(|index| is_open(&answers[*index]));
            refused.sort_unstable();
            refused.dedup();
            unanswered = refused;
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use dq_core::{Due, JobId, NewJob};

    use super::*;
    use crate::key_layout::{KeyLayout, NativeLayout};

    #[test]
    fn chunks_are_bounded_and_keep_the_order_of_each_queue() {
        let layout = NativeLayout { prefix: "dq".to_owned() };
        let queues = ["a", "b"].map(|name| QueueName::new(name).unwrap());
        let partitions = [0, 1].map(|n: usize| Arc::new(layout.partition(&queues[n], 1, 0)));
        let job = |n: usize| {
            let id = JobId::from_bytes((n as u128).to_be_bytes());
            let payload = vec![0; if n < 4 { CHUNK_BYTES } else { 1 }];
            NewJob::new(id, queues[n % 2].clone(), Due::NOW, payload.into())
        };
        let jobs: Vec<NewJob> = (0..500).map(job).collect();
        let request = |(index, item)| {
            let partition = Arc::clone(&partitions[index % 2]);
            Request { index, item, partition }
        };
        let chunks = chunks(jobs.iter().enumerate().map(request).collect());
        for queue in &queues {
            let of_queue = chunks.iter().filter(|chunk| chunk.partition.queue == *queue);
            let indices: Vec<usize> =
                of_queue.flat_map(|chunk| chunk.indices.iter().copied()).collect();
            assert!(indices.is_sorted() && indices.len() == 250);
        }
        assert!(chunks.iter().all(|chunk| chunk.items.len() <= CHUNK));
        assert!(chunks.iter().all(|chunk| chunk.bytes <= CHUNK_BYTES || chunk.items.len() == 1));
    }
}
