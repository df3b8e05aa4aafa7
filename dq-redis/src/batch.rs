//! Batches: the items of each queue together, some at a time, the answers in the order asked.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::{JobRef, NewJob, QueueName, Renewal, Reschedule, Result, Settlement};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::keys::Lane;

/// Items of one call: no script runs longer than a few milliseconds.
pub(crate) const CHUNK: usize = 100;

/// Bytes of one call.
const CHUNK_BYTES: usize = 512 * 1024;

/// What a job takes in a call besides its payload and headers, roughly.
const JOB_BYTES: usize = 64;

/// Calls of one batch that are on their way at once.
const AHEAD: usize = 8;

/// An item, its place in the batch, and where it is to be asked for.
pub(crate) struct Ask<'a, 'l, I> {
    pub(crate) place: usize,
    pub(crate) item: &'a I,
    pub(crate) lane: &'l Arc<Lane>,
}

/// Items of one lane.
pub(crate) struct Chunk<'a, I> {
    pub(crate) lane: Arc<Lane>,
    /// With the place of each in the batch.
    pub(crate) items: Vec<(usize, &'a I)>,
    bytes: usize,
}

/// What belongs to a queue.
pub(crate) trait InQueue {
    /// The queue.
    fn queue(&self) -> &QueueName;

    /// What it adds to a call, if that may be much.
    fn bytes(&self) -> usize {
        0
    }
}

impl InQueue for NewJob {
    fn queue(&self) -> &QueueName {
        &self.queue
    }

    fn bytes(&self) -> usize {
        JOB_BYTES + self.payload.len() + self.headers.bytes()
    }
}

impl InQueue for JobRef {
    fn queue(&self) -> &QueueName {
        &self.queue
    }
}

impl InQueue for Reschedule {
    fn queue(&self) -> &QueueName {
        &self.job.queue
    }
}

impl InQueue for Settlement {
    fn queue(&self) -> &QueueName {
        &self.lease.queue
    }
}

impl InQueue for Renewal {
    fn queue(&self) -> &QueueName {
        &self.lease.queue
    }
}

/// Sorts items into chunks; those of one lane keep their order.
fn chunks<'a, I: InQueue>(asks: Vec<Ask<'a, '_, I>>) -> Vec<Chunk<'a, I>> {
    let mut full = Vec::new();
    let mut open: Vec<Chunk<'a, I>> = Vec::new();
    let mut place_of: HashMap<*const Lane, usize> = HashMap::new();
    for Ask { place, item, lane } in asks {
        let at = *place_of.entry(Arc::as_ptr(lane)).or_insert_with(|| {
            open.push(Chunk { lane: Arc::clone(lane), items: Vec::new(), bytes: 0 });
            open.len() - 1
        });
        let (chunk, bytes) = (&mut open[at], item.bytes());
        if chunk.items.len() == CHUNK || chunk.bytes + bytes > CHUNK_BYTES && chunk.bytes > 0 {
            let fresh = Chunk { lane: Arc::clone(lane), items: Vec::new(), bytes: 0 };
            full.push(std::mem::replace(chunk, fresh));
        }
        chunk.items.push((place, item));
        chunk.bytes += bytes;
    }
    full.extend(open);
    full
}

/// Runs `call` on each chunk, some ahead of the answers. The answers come with their places.
pub(crate) async fn run<'a, I: InQueue, T>(
    asks: Vec<Ask<'a, '_, I>>,
    call: impl Fn(Chunk<'a, I>) -> BoxFuture<'a, Result<Vec<(usize, T)>>>,
) -> Result<Vec<(usize, T)>> {
    let mut answers = Vec::with_capacity(asks.len());
    let calls: Vec<_> = chunks(asks).into_iter().map(call).collect();
    let mut calls = stream::iter(calls).buffered(AHEAD);
    while let Some(some) = calls.try_next().await? {
        answers.extend(some);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Naming;
    use crate::shards::lanes::Lanes;

    #[test]
    fn chunks_are_bounded_and_keep_the_order_of_each_queue() {
        let lanes = Lanes::new(Naming::Native { prefix: "dq".to_owned() });
        let job = |n: usize| NewJob {
            id: dq_core::JobId::from_bytes((n as u128).to_be_bytes()),
            queue: QueueName::new(if n.is_multiple_of(2) { "a" } else { "b" }).unwrap(),
            key: None,
            on_conflict: dq_core::OnConflict::Keep,
            due: dq_core::Due::NOW,
            payload: vec![0; if n < 4 { CHUNK_BYTES } else { 1 }].into(),
            headers: dq_core::Headers::new(),
            max_attempts: None,
        };
        let jobs: Vec<NewJob> = (0..500).map(job).collect();
        let lanes: Vec<_> = jobs.iter().map(|job| lanes.of(&job.queue)).collect();
        let asks = jobs.iter().zip(&lanes).enumerate();
        let asks = asks.map(|(place, (item, lane))| Ask { place, item, lane });
        let chunks = chunks(asks.collect());
        for queue in ["a", "b"] {
            let places: Vec<usize> = chunks
                .iter()
                .filter(|chunk| chunk.lane.queue.as_str() == queue)
                .flat_map(|chunk| chunk.items.iter().map(|(place, _)| *place))
                .collect();
            assert!(places.is_sorted() && places.len() == 250);
        }
        assert!(chunks.iter().all(|chunk| chunk.items.len() <= CHUNK));
        assert!(chunks.iter().all(|chunk| chunk.bytes <= CHUNK_BYTES || chunk.items.len() == 1));
    }
}
