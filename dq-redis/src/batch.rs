//! Runs a batch: cuts each partition's items into *chunks* of one call each, and makes several
//! calls at a time.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::{JobRef, NewJob, QueueName, Renewal, Reschedule, Result, Settlement, Verdict};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::keys::Partition;

/// Maximum items per call, so that no script runs longer than a few milliseconds.
pub(crate) const CHUNK: usize = 100;

/// Maximum bytes per call, unless a single item is larger. Items of size 0 are not counted.
const CHUNK_BYTES: usize = 512 * 1024;

/// Approximate bytes per job in a call besides payload and headers.
const JOB_BYTES: usize = 64;

/// Maximum calls of one batch that wait for a reply.
const CONCURRENT_CALLS: usize = 8;

pub(crate) struct Request<'a, 'p, I> {
    pub(crate) index: usize,
    pub(crate) item: &'a I,
    pub(crate) partition: &'p Arc<Partition>,
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

pub(crate) trait Item {
    fn queue(&self) -> &QueueName;

    /// 0 for items that are always small.
    fn size_bytes(&self) -> usize {
        0
    }
}

impl Item for NewJob {
    fn queue(&self) -> &QueueName {
        &self.queue
    }

    fn size_bytes(&self) -> usize {
        JOB_BYTES + self.payload.len() + self.headers.size_bytes()
    }
}

impl Item for JobRef {
    fn queue(&self) -> &QueueName {
        &self.queue
    }
}

impl Item for Reschedule {
    fn queue(&self) -> &QueueName {
        &self.job.queue
    }
}

impl Item for Settlement {
    fn queue(&self) -> &QueueName {
        &self.lease.queue
    }

    fn size_bytes(&self) -> usize {
        match &self.verdict {
            Verdict::Again { payload, .. } => JOB_BYTES + payload.len(),
            _ => 0,
        }
    }
}

impl Item for Renewal {
    fn queue(&self) -> &QueueName {
        &self.lease.queue
    }
}

/// Cuts requests into chunks, keeping the order within a partition.
fn chunks<'a, I: Item>(requests: Vec<Request<'a, '_, I>>) -> Vec<Chunk<'a, I>> {
    let mut full = Vec::new();
    let mut filling: Vec<Chunk<'a, I>> = Vec::new();
    let mut position_of: HashMap<*const Partition, usize> = HashMap::new();
    for Request { index, item, partition } in requests {
        let position = *position_of.entry(Arc::as_ptr(partition)).or_insert_with(|| {
            filling.push(Chunk::new(partition));
            filling.len() - 1
        });
        let (chunk, bytes) = (&mut filling[position], item.size_bytes());
        if chunk.items.len() == CHUNK || chunk.bytes + bytes > CHUNK_BYTES && chunk.bytes > 0 {
            full.push(std::mem::replace(chunk, Chunk::new(partition)));
        }
        chunk.items.push(item);
        chunk.indices.push(index);
        chunk.bytes += bytes;
    }
    full.extend(filling);
    full
}

/// Returns each item's index and answer: `None` if its partition is closed.
pub(crate) async fn run<'a, I: Item, T>(
    requests: Vec<Request<'a, '_, I>>,
    call: impl Fn(Chunk<'a, I>) -> BoxFuture<'a, Result<Option<Vec<T>>>>,
) -> Result<Vec<(usize, Option<T>)>> {
    let mut all = Vec::with_capacity(requests.len());
    let chunks = chunks(requests).into_iter();
    let (calls, indices): (Vec<_>, Vec<_>) = chunks
        .map(|mut chunk| {
            let indices = std::mem::take(&mut chunk.indices);
            (call(chunk), indices)
        })
        .unzip();
    let mut answers = stream::iter(calls)
        .buffered(CONCURRENT_CALLS)
        .zip(stream::iter(indices))
        .map(|(answers, indices)| answers.map(|answers| (answers, indices)));
    while let Some((answers, indices)) = answers.try_next().await? {
        match answers {
            Some(answers) => all.extend(indices.into_iter().zip(answers.into_iter().map(Some))),
            None => all.extend(indices.into_iter().map(|index| (index, None))),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use dq_core::{Due, JobId};

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
        let requests = jobs.iter().enumerate();
        let requests = requests.map(|(index, item)| Request {
            index,
            item,
            partition: &partitions[index % 2],
        });
        let chunks = chunks(requests.collect());
        for queue in &queues {
            let indices: Vec<usize> = chunks
                .iter()
                .filter(|chunk| chunk.partition.queue == *queue)
                .flat_map(|chunk| chunk.indices.iter().copied())
                .collect();
            assert!(indices.is_sorted() && indices.len() == 250);
        }
        assert!(chunks.iter().all(|chunk| chunk.items.len() <= CHUNK));
        assert!(chunks.iter().all(|chunk| chunk.bytes <= CHUNK_BYTES || chunk.items.len() == 1));
    }
}
