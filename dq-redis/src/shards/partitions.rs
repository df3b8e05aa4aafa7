//! The partitions of queues, and the cache of those that this process has looked up.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{JobId, JobKey, QueueName, Target};

use super::layout::shard_of;
use crate::key_layout::KeyLayout;
use crate::keys::Partition;

/// The partitions of one queue.
#[derive(Debug)]
pub(crate) struct QueuePartitions {
    /// One for each shard; never empty.
    pub(crate) all: Vec<Arc<Partition>>,
}

impl QueuePartitions {
    /// Whether there is only one partition, so that every job is in it.
    pub(crate) fn is_single(&self) -> bool {
        self.all.len() == 1
    }

    /// The number of shards.
    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.all.len()).expect("at most 256 shards")
    }

    /// The partition of a shard.
    pub(crate) fn shard(&self, shard: u16) -> &Arc<Partition> {
        &self.all[usize::from(shard)]
    }

    /// Whether this very partition is one of these: not merely an equal one, which an earlier
    /// lookup made. Of calls that a closed partition has refused, the first looks the queue up
    /// again, and the others see by this that it was done.
    pub(crate) fn contains(&self, partition: &Arc<Partition>) -> bool {
        self.all.iter().any(|one| Arc::ptr_eq(one, partition))
    }

    /// The shard in which a job with this id and key is stored.
    pub(crate) fn shard_for(&self, id: JobId, key: Option<&JobKey>) -> u16 {
        match key {
            _ if self.is_single() => 0,
            Some(key) => shard_of(key.as_str().as_bytes(), self.shards()),
            None => shard_of(&id.to_bytes(), self.shards()),
        }
    }

    /// The shard in which to look for a job first, and the shards in which to look after that. If a
    /// job with a key is looked up by id, it may be in any shard.
    pub(crate) fn candidates(&self, target: &Target) -> (u16, Vec<u16>) {
        if self.is_single() {
            return (0, Vec::new());
        }
        match target {
            Target::Key(key) => (shard_of(key.as_str().as_bytes(), self.shards()), Vec::new()),
            Target::Id(id) => {
                let first = self.shard_for(*id, None);
                (first, (0..self.shards()).filter(|shard| *shard != first).collect())
            }
        }
    }
}

/// The partitions of all queues that this process uses.
#[derive(Debug)]
pub(crate) struct Partitions {
    pub(crate) layout: Box<dyn KeyLayout>,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    /// The connection on which the numbers of shards were read, as in `Link::connections`.
    connection: u64,
    queues: HashMap<QueueName, Arc<QueuePartitions>>,
    /// Those with more than one partition.
    sharded: HashSet<QueueName>,
    /// Queues whose stored number of shards was once the one in the settings of this process. The
    /// process does not change that number again, not even on a later connection: two processes
    /// with different settings would change it in turns.
    established: HashSet<QueueName>,
}

impl Partitions {
    pub(crate) fn new(layout: Box<dyn KeyLayout>) -> Self {
        Self { layout, cache: Mutex::default() }
    }

    /// The partitions of a queue, if they were looked up on this connection: a new one may lead to
    /// a server that was replaced or restored.
    pub(crate) fn cached(
        &self,
        queue: &QueueName,
        connection: u64,
    ) -> Option<Arc<QueuePartitions>> {
        let mut cache = lock(&self.cache);
        if cache.connection != connection {
            cache.connection = connection;
            cache.queues.clear();
            cache.sharded.clear();
        }
        cache.queues.get(queue).cloned()
    }

    /// Adds the partitions of a queue with this number of shards to the cache, and returns them.
    pub(crate) fn set(&self, queue: &QueueName, shards: u16) -> Arc<QueuePartitions> {
        let partitions = Arc::new(self.make(queue, shards));
        let mut cache = lock(&self.cache);
        cache.queues.insert(queue.clone(), Arc::clone(&partitions));
        if partitions.is_single() {
            cache.sharded.remove(queue);
        } else {
            cache.sharded.insert(queue.clone());
        }
        drop(cache);
        partitions
    }

    /// The cached queues with more than one partition.
    pub(crate) fn sharded(&self) -> HashSet<QueueName> {
        lock(&self.cache).sharded.clone()
    }

    /// Removes the partitions of a queue from the cache, so that its number of shards is looked up.
    pub(crate) fn forget(&self, queue: &QueueName) {
        lock(&self.cache).queues.remove(queue);
    }

    /// Whether [`Self::establish`] was called for a queue.
    pub(crate) fn is_established(&self, queue: &QueueName) -> bool {
        lock(&self.cache).established.contains(queue)
    }

    /// Records that the stored number of shards of a queue is the one in the settings of this
    /// process.
    pub(crate) fn establish(&self, queue: &QueueName) {
        lock(&self.cache).established.insert(queue.clone());
    }

    /// Makes the partitions of a queue with this number of shards, without caching them.
    pub(crate) fn make(&self, queue: &QueueName, shards: u16) -> QueuePartitions {
        let partition = |shard| Arc::new(self.layout.partition(queue, shards, shard));
        QueuePartitions { all: (0..shards).map(partition).collect() }
    }

    /// The unsharded partition of a queue: the only one of a queue without shards. Of a queue with
    /// shards it holds the stored layout, and its channel is that of all partitions.
    pub(crate) fn unsharded(&self, queue: &QueueName) -> Arc<Partition> {
        let cached = lock(&self.cache).queues.get(queue).cloned();
        match cached {
            Some(cached) if cached.is_single() => Arc::clone(cached.shard(0)),
            _ => Arc::new(self.layout.partition(queue, 1, 0)),
        }
    }
}
