//! Batch calls: routes *items*, each about one job, to their partitions, and cuts each partition's
//! items into *chunks* of one call each.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::{QueueName, Result, async_trait};
use futures_util::{StreamExt, stream};
use redis::Value;

use crate::error::unexpected;
use crate::keys::Partition;
use crate::reply;
use crate::script::{Call, Script, Scripts};
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

/// For example storing or cancelling one job.
#[async_trait]
pub(crate) trait Item: Send + Sync + Sized {
    type Answer: Send;

    /// The item stores a new job, so the queue needs the shard count in the settings.
    const IS_NEW: bool = false;

    fn queue(&self) -> &QueueName;

    /// 0 for items that are always small.
    fn size_bytes(&self) -> usize {
        0
    }

    /// The first shard to call, and the shards to try if the job is not there.
    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>);

    fn is_absent(answer: &Self::Answer) -> bool;

    fn script(scripts: &Scripts) -> &Script;

    fn add_arguments(
        backend: &RedisBackend,
        chunk: &Chunk<'_, Self>,
        call: &mut Call<'_>,
    ) -> Result<()>;

    async fn read(
        backend: &RedisBackend,
        reply: Value,
        chunk: &Chunk<'_, Self>,
    ) -> Result<Vec<Self::Answer>>;

    /// `None` if the partition is closed: the items are routed again.
    async fn call(
        backend: &RedisBackend,
        chunk: &Chunk<'_, Self>,
    ) -> Result<Option<Vec<Self::Answer>>> {
        let mut call = Self::script(&backend.scripts).on([&*chunk.partition]);
        Self::add_arguments(backend, chunk, &mut call)?;
        match backend.run_on(&chunk.partition, call).await? {
            Some(reply) => Self::read(backend, reply, chunk).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Reads a reply with a letter for each item.
pub(crate) fn read_letters<I, T>(
    reply: Value,
    chunk: &Chunk<'_, I>,
    read: impl Fn(u8) -> T,
) -> Result<Vec<T>> {
    let letters = reply::bytes(reply)?;
    if letters.len() != chunk.items.len() {
        return Err(unexpected());
    }
    Ok(letters.iter().map(|letter| read(*letter)).collect())
}

/// `index` is the item's place in the batch.
struct Request<'a, I> {
    index: usize,
    item: &'a I,
    partition: Arc<Partition>,
}

/// Calls of a batch, and the items that follow when these are answered.
struct Routes<'a, I> {
    first: Vec<Request<'a, I>>,
    others: Vec<Request<'a, I>>,
    later: Vec<usize>,
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
        let is_too_large = chunk.bytes > 0 && chunk.bytes + bytes > CHUNK_BYTES;
        if chunk.items.len() == CHUNK || is_too_large {
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
    /// Calls the most likely partition of each item, then, for absent jobs, all other partitions
    /// where the job may be. Returns the answers in order.
    /// Errors: As [`Self::partitions_of`] or, for new jobs, [`Self::partitions_to_fill`];
    /// `Unavailable` if the shard count keeps changing. Items may have taken effect before.
    pub(crate) async fn run_batch<I: Item>(&self, items: &[I]) -> Result<Vec<I::Answer>> {
        let mut answers: Vec<Option<I::Answer>> = items.iter().map(|_| None).collect();
        let mut unanswered: Vec<usize> = (0..items.len()).collect();
        let mut attempts = self.attempts();
        while !unanswered.is_empty() {
            attempts.next().await?;
            let Routes { first, others, later } = self.route(items, unanswered).await?;
            let mut refused = self.call_unanswered(first, &mut answers).await?;
            refused.extend(self.call_unanswered(others, &mut answers).await?);
            refused.retain(|index| is_open::<I>(&answers[*index]));
            refused.sort_unstable();
            refused.dedup();
            if refused.is_empty() {
                attempts = self.attempts();
            }
            refused.extend(later);
            unanswered = refused;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Stops where items begin whose jobs may be in other shards, or end: the order of two items
    /// would be lost if both were about one job.
    async fn route<'a, I: Item>(
        &self,
        items: &'a [I],
        indices: Vec<usize>,
    ) -> Result<Routes<'a, I>> {
        let mut queues: HashMap<&QueueName, Arc<QueuePartitions>> = HashMap::new();
        let (mut first, mut others) = (Vec::with_capacity(indices.len()), Vec::new());
        let mut indices = indices.into_iter();
        let mut is_routed_surely = None;
        while let Some(&index) = indices.as_slice().first() {
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
            if *is_routed_surely.get_or_insert(more.is_empty()) != more.is_empty() {
                break;
            }
            indices.next();
            let request =
                |shard| Request { index, item, partition: Arc::clone(partitions.shard(shard)) };
            first.push(request(shard));
            others.extend(more.into_iter().map(request));
        }
        Ok(Routes { first, others, later: indices.collect() })
    }

    /// Returns the indices of items with a closed partition.
    async fn call_unanswered<I: Item>(
        &self,
        mut requests: Vec<Request<'_, I>>,
        answers: &mut [Option<I::Answer>],
    ) -> Result<Vec<usize>> {
        requests.retain(|request| is_open::<I>(&answers[request.index]));
        let chunks = chunks(requests);
        let calls: Vec<_> = chunks.iter().map(|chunk| I::call(self, chunk)).collect();
        let mut replies = stream::iter(calls).buffered(CONCURRENT_CALLS);
        let mut refused = Vec::new();
        for chunk in &chunks {
            let Some(reply) = replies.next().await.transpose()?.flatten() else {
                refused.extend(&chunk.indices);
                continue;
            };
            for (index, answer) in chunk.indices.iter().zip(reply) {
                if is_open::<I>(&answers[*index]) {
                    answers[*index] = Some(answer);
                }
            }
        }
        Ok(refused)
    }
}

/// Whether an item has no answer yet, or one that another shard may improve.
fn is_open<I: Item>(answer: &Option<I::Answer>) -> bool {
    answer.as_ref().is_none_or(I::is_absent)
}
