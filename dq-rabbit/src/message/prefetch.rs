//! The prefetch buffer: jobs that were delivered before they are due, or for which no slot is free.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Headers, JobId, QueueName, Timestamp, Want};

use super::ack::AckHandle;

/// Maximum size of all buffered payloads and headers. Jobs beyond it run from the log.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// Payloads of jobs that this process can claim without reading the log, ordered by due time.
#[derive(Debug, Default)]
pub(crate) struct PrefetchBuffer {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_queue: HashMap<QueueName, BTreeMap<(Timestamp, JobId), Prefetched>>,
    /// Queue and due time of each job, to find it in `by_queue`.
    locations: HashMap<JobId, (QueueName, Timestamp)>,
    /// Size of all payloads and headers.
    bytes: usize,
}

/// Payload and headers of a job, and the delivery that brought them.
#[derive(Debug)]
pub(crate) struct Prefetched {
    payload: Bytes,
    headers: Headers,
    ack: Option<AckHandle>,
}

impl Prefetched {
    /// Without a delivery: the payload of a job whose lease this process has ended, so that it
    /// waits again.
    pub(crate) fn local((payload, headers): (Bytes, Headers)) -> Self {
        Self { payload, headers, ack: None }
    }

    /// From a delivery, which stays unacknowledged until [`ack`](Self::ack).
    pub(crate) fn delivered((payload, headers): (Bytes, Headers), ack: AckHandle) -> Self {
        Self { payload, headers, ack: Some(ack) }
    }

    fn size_bytes(&self) -> usize {
        self.payload.len() + self.headers.size_bytes()
    }

    /// Acknowledges the delivery, if there is one that is not acknowledged yet.
    pub(crate) fn ack(&mut self) {
        if let Some(ack) = self.ack.take() {
            ack.ack();
        }
    }

    /// Takes payload and headers. Does not acknowledge: without [`ack`](Self::ack) before, the
    /// delivery is redelivered when the channel closes.
    pub(crate) fn into_payload(self) -> (Bytes, Headers) {
        debug_assert!(self.ack.is_none(), "a prefetched job is acknowledged before it is used");
        (self.payload, self.headers)
    }
}

impl PrefetchBuffer {
    /// Inserts a job, and replaces an earlier entry of the same job. Acknowledges the replaced
    /// entry, and the new one if the buffer is full.
    pub(crate) fn insert(&self, queue: &QueueName, id: JobId, due: Timestamp, job: Prefetched) {
        let dropped = {
            let mut inner = lock(&self.inner);
            let replaced = inner.remove(id);
            if inner.bytes + job.size_bytes() > MAX_BYTES {
                [replaced, Some(job)]
            } else {
                inner.bytes += job.size_bytes();
                inner.locations.insert(id, (queue.clone(), due));
                inner.by_queue.entry(queue.clone()).or_default().insert((due, id), job);
                [replaced, None]
            }
        };
        for mut dropped in dropped.into_iter().flatten() {
            dropped.ack();
        }
    }

    /// Removes a job.
    pub(crate) fn take(&self, id: JobId) -> Option<Prefetched> {
        lock(&self.inner).remove(id)
    }

    /// Whether a job is buffered.
    pub(crate) fn contains(&self, id: JobId) -> bool {
        lock(&self.inner).locations.contains_key(&id)
    }

    /// The jobs that are due, earliest first, for each queue at most as many as wanted.
    pub(crate) fn due(&self, wants: &[Want], now: Timestamp) -> Vec<JobId> {
        let inner = lock(&self.inner);
        let of_queue = |want: &Want| {
            let jobs = inner.by_queue.get(&want.queue);
            let due = jobs.into_iter().flat_map(BTreeMap::keys);
            due.take_while(|(due, _)| *due <= now).take(want.max).map(|(_, id)| *id).collect()
        };
        wants.iter().flat_map(|want| -> Vec<_> { of_queue(want) }).collect()
    }

    /// All jobs that are due at `time` or earlier.
    pub(crate) fn due_by(&self, time: Timestamp) -> Vec<JobId> {
        let inner = lock(&self.inner);
        let due = inner
            .by_queue
            .values()
            .flat_map(|jobs| jobs.keys().take_while(|(due, _)| *due <= time).map(|(_, id)| *id));
        due.collect()
    }
}

impl Inner {
    fn remove(&mut self, id: JobId) -> Option<Prefetched> {
        let (queue, due) = self.locations.remove(&id)?;
        let jobs = self.by_queue.get_mut(&queue)?;
        let removed = jobs.remove(&(due, id));
        self.bytes -= removed.as_ref().map_or(0, Prefetched::size_bytes);
        if jobs.is_empty() {
            self.by_queue.remove(&queue);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_limited_in_bytes() {
        let buffer = PrefetchBuffer::default();
        let queue = QueueName::new("q").unwrap();
        let id = |number| JobId::from_bytes([number; 16]);
        let insert = |number, bytes| {
            let job = Prefetched::local((Bytes::from(vec![0; bytes]), Headers::new()));
            buffer.insert(&queue, id(number), Timestamp::EPOCH, job);
        };
        insert(1, MAX_BYTES / 2);
        insert(2, MAX_BYTES / 2);
        insert(3, 1);
        assert!(buffer.contains(id(1)) && buffer.contains(id(2)) && !buffer.contains(id(3)));
        assert_eq!(buffer.take(id(1)).unwrap().payload.len(), MAX_BYTES / 2);
        insert(3, 1);
        assert!(buffer.contains(id(3)));
        // Replacing an entry needs no additional bytes.
        insert(2, MAX_BYTES / 2);
        assert!(buffer.contains(id(2)));
    }
}
