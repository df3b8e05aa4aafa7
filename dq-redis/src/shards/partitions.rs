//! The partitions of each queue, as far as this process knows them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{JobId, JobKey, QueueName, Target};

use super::layout::shard_of;
use crate::keys::{Naming, Partition};

/// The partitions of one queue.
#[derive(Debug)]
pub(crate) struct QueuePartitions {
    /// One for each shard; never empty.
    pub(crate) all: Vec<Arc<Partition>>,
}

impl QueuePartitions {
    /// Whether the queue has no shards.
    pub(crate) fn is_single(&self) -> bool {
        self.all.len() == 1
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.all.len()).expect("at most 256 shards")
    }

    /// The partition of a shard.
    pub(crate) fn shard(&self, shard: u16) -> &Arc<Partition> {
        &self.all[usize::from(shard)]
    }

    /// Whether this is one of the partitions.
    pub(crate) fn contains(&self, partition: &Arc<Partition>) -> bool {
        self.all.iter().any(|known| Arc::ptr_eq(known, partition))
    }

    /// The shard in which a job is stored.
    pub(crate) fn home(&self, id: JobId, key: Option<&JobKey>) -> u16 {
        match key {
            _ if self.is_single() => 0,
            Some(key) => shard_of(key.as_str().as_bytes(), self.shards()),
            None => shard_of(&id.to_bytes(), self.shards()),
        }
    }

    /// The shard in which a job most likely is, and the others in which it may be. A job with a key that
    /// is looked for by id may be in any.
    pub(crate) fn candidates(&self, target: &Target) -> (u16, Vec<u16>) {
        if self.is_single() {
            return (0, Vec::new());
        }
        match target {
            Target::Key(key) => (shard_of(key.as_str().as_bytes(), self.shards()), Vec::new()),
            Target::Id(id) => {
                let first = self.home(*id, None);
                (first, (0..self.shards()).filter(|shard| *shard != first).collect())
            }
        }
    }
}

/// The partitions of all queues that were used.
#[derive(Debug)]
pub(crate) struct Partitions {
    pub(crate) naming: Naming,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The connection by which the numbers of shards were read.
    connection: u64,
    queues: HashMap<QueueName, Arc<QueuePartitions>>,
    /// Queues whose number of shards was once the one in the settings of this process.
    established: HashSet<QueueName>,
}

impl Partitions {
    pub(crate) fn new(naming: Naming) -> Self {
        Self { naming, known: Mutex::default() }
    }

    /// The partitions of a queue, if they are known on this connection. A new connection may lead to a
    /// server that was replaced or restored.
    pub(crate) fn known(&self, queue: &QueueName, connection: u64) -> Option<Arc<QueuePartitions>> {
        let mut known = lock(&self.known);
        if known.connection != connection {
            known.connection = connection;
            known.queues.clear();
        }
        known.queues.get(queue).cloned()
    }

    /// Makes the partitions of a queue with so many shards known.
    pub(crate) fn set(&self, queue: &QueueName, shards: u16) -> Arc<QueuePartitions> {
        let partitions = Arc::new(self.make(queue, shards));
        lock(&self.known).queues.insert(queue.clone(), Arc::clone(&partitions));
        partitions
    }

    /// Whether the number of shards of a queue was once the one in the settings of this process.
    pub(crate) fn is_established(&self, queue: &QueueName) -> bool {
        lock(&self.known).established.contains(queue)
    }

    /// The number of shards of a queue is the one in the settings of this process.
    pub(crate) fn establish(&self, queue: &QueueName) {
        lock(&self.known).established.insert(queue.clone());
    }

    /// The partitions of a queue with so many shards.
    pub(crate) fn make(&self, queue: &QueueName, shards: u16) -> QueuePartitions {
        let partition = |shard| Arc::new(self.naming.partition(queue, shards, shard));
        QueuePartitions { all: (0..shards).map(partition).collect() }
    }

    /// The only partition of a queue without shards. It holds the stored layout of one that has shards.
    pub(crate) fn unsharded(&self, queue: &QueueName) -> Arc<Partition> {
        let known = lock(&self.known).queues.get(queue).cloned();
        match known {
            Some(known) if known.is_single() => Arc::clone(known.shard(0)),
            _ => Arc::new(self.naming.partition(queue, 1, 0)),
        }
    }
}
