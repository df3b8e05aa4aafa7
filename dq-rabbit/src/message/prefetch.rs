//! The prefetch buffer: jobs that were delivered before they are due, or for which no slot is free.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{JobId, QueueName, Timestamp, Want};

use super::ack::AckHandle;

/// Maximum size of all buffered payloads. Jobs beyond it run from the log.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// How long an overdue job stays in the prefetch buffer while no handler is free to run it. Must be less
/// than the broker's `consumer_timeout`, half an hour by default, after which it redelivers the message.
/// Jobs that are dropped from the buffer run from the log.
pub(crate) const MAX_OVERDUE: Duration = Duration::from_secs(600);

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
    /// Size of all payloads.
    bytes: usize,
}

/// The payload of a job, and the delivery that brought it.
#[derive(Debug, Default)]
pub(crate) struct Prefetched {
    /// `None` if it has to be read from the log.
    payload: Option<Bytes>,
    ack: Option<AckHandle>,
    /// The payload was read from the log, because no message had brought it.
    is_from_log: bool,
}

impl Prefetched {
    /// Without a delivery: the payload of a job whose lease this process has ended, so that it
    /// waits again.
    pub(crate) fn local(payload: Bytes) -> Self {
        Self { payload: Some(payload), ack: None, is_from_log: false }
    }

    /// Read from the log before the job is due.
    pub(crate) fn from_log(payload: Bytes) -> Self {
        Self { payload: Some(payload), ack: None, is_from_log: true }
    }

    /// Whether the payload was read ahead from the log.
    pub(crate) fn is_from_log(&self) -> bool {
        self.is_from_log
    }

    /// From a delivery, which stays unacknowledged until [`ack`](Self::ack).
    pub(crate) fn delivered(payload: Bytes, ack: AckHandle) -> Self {
        Self { payload: Some(payload), ack: Some(ack), is_from_log: false }
    }

    /// Whether the job has no message: see [`PrefetchBuffer::insert_without_payload`].
    pub(crate) fn is_empty(&self) -> bool {
        self.payload.is_none() && self.ack.is_none()
    }

    fn size_bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, Bytes::len)
    }

    /// Acknowledges the delivery, if there is one that is not acknowledged yet.
    pub(crate) fn ack(&mut self) {
        if let Some(ack) = self.ack.take() {
            ack.ack();
        }
    }

    /// Takes the payload. Does not acknowledge: without [`ack`](Self::ack) before, the
    /// delivery is redelivered when the channel closes.
    pub(crate) fn into_payload(self) -> Option<Bytes> {
        debug_assert!(self.ack.is_none(), "a prefetched job is acknowledged before it is used");
        self.payload
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

    /// Lets this process claim a job as a prefetched one, although its payload may have to be read
    /// from the log: the job has no message, and waiting for other processes would be in vain.
    pub(crate) fn insert_without_payload(&self, queue: &QueueName, id: JobId, due: Timestamp) {
        let job = self.take(id).unwrap_or_default();
        self.insert(queue, id, due, job);
    }

    /// How many bytes of payloads may be read from the log. The other half of the buffer is for
    /// payloads that messages bring.
    pub(crate) fn room_for_log(&self) -> usize {
        (MAX_BYTES / 2).saturating_sub(lock(&self.inner).bytes)
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
            let job = Prefetched::local(Bytes::from(vec![0; bytes]));
            buffer.insert(&queue, id(number), Timestamp::EPOCH, job);
        };
        insert(1, MAX_BYTES / 2);
        insert(2, MAX_BYTES / 2);
        insert(3, 1);
        assert!(buffer.contains(id(1)) && buffer.contains(id(2)) && !buffer.contains(id(3)));
        assert_eq!(buffer.take(id(1)).unwrap().size_bytes(), MAX_BYTES / 2);
        assert_eq!(buffer.room_for_log(), 0);
        insert(3, 1);
        assert!(buffer.contains(id(3)));
        // Replacing an entry needs no additional bytes.
        insert(2, MAX_BYTES / 2);
        assert!(buffer.contains(id(2)));
    }
}
