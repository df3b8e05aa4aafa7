//! The partitions of queues: which exist, where a job is, and a cache of them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{JobId, JobKey, QueueName, Target};

use super::layout::shard_of;
use crate::key_layout::KeyLayout;
use crate::keys::Partition;

#[derive(Debug)]
pub(crate) struct QueuePartitions {
    /// One for each shard, so at least one.
    pub(crate) all: Vec<Arc<Partition>>,
}

impl QueuePartitions {
    pub(crate) fn is_single(&self) -> bool {
        self.all.len() == 1
    }

    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.all.len()).expect("at most 256 shards")
    }

    pub(crate) fn shard(&self, shard: u16) -> &Arc<Partition> {
        &self.all[usize::from(shard)]
    }

    /// Whether this very partition is one of them, not only an equal one. Calls that a closed
    /// partition has refused see by this that another call has looked the queue up again.
    pub(crate) fn contains(&self, partition: &Arc<Partition>) -> bool {
        self.all.iter().any(|one| Arc::ptr_eq(one, partition))
    }

    pub(crate) fn shard_for(&self, id: JobId, key: Option<&JobKey>) -> u16 {
        match key {
            _ if self.is_single() => 0,
            Some(key) => shard_of(key.as_str().as_bytes(), self.shards()),
            None => shard_of(&id.to_bytes(), self.shards()),
        }
    }

    /// The first shard in which to look for a job, and the others. A job with a key, looked up by
    /// id, may be in any shard.
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

#[derive(Debug)]
pub(crate) struct Partitions {
    pub(crate) layout: Box<dyn KeyLayout>,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    connection: u64,
    queues: HashMap<QueueName, Arc<QueuePartitions>>,
    /// Queues whose stored count was once this process's setting. The process does not change it
    /// again, even on a later connection: two processes with different settings would change it in
    /// turns.
    established: HashSet<QueueName>,
}

impl Partitions {
    pub(crate) fn new(layout: Box<dyn KeyLayout>) -> Self {
        Self { layout, cache: Mutex::default() }
    }

    /// `None` on a new connection, which may lead to a server that was replaced or restored.
    pub(crate) fn cached(
        &self,
        queue: &QueueName,
        connection: u64,
    ) -> Option<Arc<QueuePartitions>> {
        let mut cache = lock(&self.cache);
        if cache.connection != connection {
            cache.connection = connection;
            cache.queues.clear();
        }
        cache.queues.get(queue).cloned()
    }

    pub(crate) fn set(&self, queue: &QueueName, shards: u16) -> Arc<QueuePartitions> {
        let partitions = Arc::new(self.make(queue, shards));
        lock(&self.cache).queues.insert(queue.clone(), Arc::clone(&partitions));
        partitions
    }

    pub(crate) fn is_sharded(&self, queue: &QueueName) -> bool {
        lock(&self.cache).queues.get(queue).is_some_and(|partitions| !partitions.is_single())
    }

    pub(crate) fn forget(&self, queue: &QueueName) {
        lock(&self.cache).queues.remove(queue);
    }

    pub(crate) fn is_established(&self, queue: &QueueName) -> bool {
        lock(&self.cache).established.contains(queue)
    }

    pub(crate) fn establish(&self, queue: &QueueName) {
        lock(&self.cache).established.insert(queue.clone());
    }

    pub(crate) fn make(&self, queue: &QueueName, shards: u16) -> QueuePartitions {
        let partition = |shard| Arc::new(self.layout.partition(queue, shards, shard));
        QueuePartitions { all: (0..shards).map(partition).collect() }
    }

    /// Of a sharded queue, it holds the stored layout.
    pub(crate) fn unsharded(&self, queue: &QueueName) -> Arc<Partition> {
        let cached = lock(&self.cache).queues.get(queue).cloned();
        match cached {
            Some(cached) if cached.is_single() => Arc::clone(cached.shard(0)),
            _ => Arc::new(self.layout.partition(queue, 1, 0)),
        }
    }
}
