//! Payloads in memory: for waiting jobs that this process can claim without reading the log, and
//! for jobs that it runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Job, JobId, QueueName, Timestamp, Want};

use crate::message::AckHandle;

/// The most payload bytes from messages. Other jobs run from the log.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// The most payload bytes that are read ahead. The jobs due last make room for others.
pub(crate) const MAX_LOG_BYTES: usize = 64 * 1024 * 1024;
/// Memory of an entry besides its payload, in bytes.
const OVERHEAD: usize = 128;

/// How long an overdue job keeps its payload while no slot is free. After `consumer_timeout` (30
/// minutes by default), the broker would redeliver the message.
pub(crate) const MAX_OVERDUE: Duration = Duration::from_secs(600);

/// How long before their due time payloads are read from the log: as early as the ladder delivers a
/// message.
pub(crate) const HORIZON: Duration = Duration::from_secs(10);

/// A bounded buffer of payloads. Lock order: the state of the log first, then this.
#[derive(Debug, Default)]
pub(crate) struct PayloadBuffer(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Queues that this process claims from. Only their payloads are kept from the log.
    served: HashSet<QueueName>,
    /// The waiting jobs of each queue, in order of their due times.
    waiting: HashMap<QueueName, BTreeMap<(Timestamp, JobId), Buffered>>,
    /// Where each job is in `waiting`.
    places: HashMap<JobId, (QueueName, Timestamp)>,
    /// The jobs with [`Origin::Log`], with the size of their payloads.
    from_log: BTreeMap<(Timestamp, JobId), usize>,
    log_bytes: usize,
    other_bytes: usize,
    /// Payloads of leased jobs, for the message of a retry.
    leased: HashMap<JobId, Bytes>,
}

#[derive(Debug)]
pub(crate) struct Buffered {
    /// `None` if the claim has to read it from the log.
    payload: Option<Bytes>,
    pub(crate) origin: Origin,
}

#[derive(Debug)]
pub(crate) enum Origin {
    /// A message, which is acknowledged when the payload leaves the buffer.
    Message(AckHandle),
    Log,
    /// This process has made the job wait again, without a message.
    Own,
}

impl Buffered {
    /// Acknowledges the message, if there is one.
    pub(crate) fn into_payload(self) -> Option<Bytes> {
        if let Origin::Message(ack) = self.origin {
            ack.ack();
        }
        self.payload
    }

    fn size(&self) -> usize {
        OVERHEAD + self.payload.as_ref().map_or(0, Bytes::len)
    }
}

impl PayloadBuffer {
    pub(crate) fn serve(&self, queue: &QueueName) {
        let mut inner = lock(&self.0);
        if !inner.served.contains(queue) {
            inner.served.insert(queue.clone());
        }
    }

    pub(crate) fn served(&self) -> Vec<QueueName> {
        lock(&self.0).served.iter().cloned().collect()
    }

    /// Adds the payload of a waiting job and replaces an earlier one.
    pub(crate) fn insert(
        &self,
        queue: &QueueName,
        id: JobId,
        due: Timestamp,
        payload: Bytes,
        origin: Origin,
    ) {
        self.put(queue, id, due, Buffered { payload: Some(payload), origin });
    }

    /// Lets this process claim a job without a message as if it had the payload, because no other
    /// process has it.
    pub(crate) fn insert_without_payload(&self, queue: &QueueName, id: JobId, due: Timestamp) {
        let buffered = match self.take(id) {
            Some(buffered) if matches!(buffered.origin, Origin::Message(_)) => buffered,
            other => Buffered { payload: other.and_then(|it| it.payload), origin: Origin::Own },
        };
        self.put(queue, id, due, buffered);
    }

    /// Adds a waiting job's payload, unless the buffer has it.
    pub(crate) fn insert_from_log(&self, job: &Job, payload: &Bytes) {
        let mut inner = lock(&self.0);
        if inner.places.contains_key(&job.id) {
            inner.complete(job.id, payload);
        } else if inner.served.contains(&job.queue) {
            let buffered = Buffered { payload: Some(payload.clone()), origin: Origin::Log };
            inner.put(&job.queue, job.id, job.due, buffered);
            while inner.log_bytes > MAX_LOG_BYTES
                && let Some(((_, last), _)) = inner.from_log.last_key_value()
            {
                let last = *last;
                inner.take(last);
            }
        }
    }

    /// Without room, the job is not in the buffer afterwards.
    fn put(&self, queue: &QueueName, id: JobId, due: Timestamp, buffered: Buffered) {
        let dropped = {
            let mut inner = lock(&self.0);
            let replaced = inner.take(id);
            if inner.other_bytes + buffered.size() > MAX_BYTES {
                [replaced, Some(buffered)]
            } else {
                inner.put(queue, id, due, buffered);
                [replaced, None]
            }
        };
        dropped.into_iter().flatten().for_each(|dropped| drop(dropped.into_payload()));
    }

    pub(crate) fn take(&self, id: JobId) -> Option<Buffered> {
        lock(&self.0).take(id)
    }

    pub(crate) fn discard(&self, ids: impl IntoIterator<Item = JobId>) {
        for id in ids {
            self.take(id).map(Buffered::into_payload);
        }
    }

    pub(crate) fn contains(&self, id: JobId) -> bool {
        lock(&self.0).places.contains_key(&id)
    }

    /// Lists the due jobs, earliest first, up to `want.max` for each queue.
    pub(crate) fn due(&self, wants: &[Want], now: Timestamp) -> Vec<(Timestamp, JobId)> {
        let inner = lock(&self.0);
        let mut ids = Vec::new();
        for want in wants {
            let jobs = inner.waiting.get(&want.queue).into_iter().flat_map(BTreeMap::keys);
            ids.extend(jobs.take_while(|(due, _)| *due <= now).take(want.max));
        }
        ids
    }

    pub(crate) fn all_due(&self, now: Timestamp) -> Vec<(Timestamp, JobId)> {
        let inner = lock(&self.0);
        let is_due = |job: &&(Timestamp, JobId)| job.0 <= now;
        let due = inner.waiting.values().flat_map(|jobs| jobs.keys().take_while(is_due));
        due.copied().collect()
    }

    /// Returns how many more bytes may be read from the log for jobs that are due by then.
    pub(crate) fn room_for_log(&self, until: Timestamp) -> usize {
        let inner = lock(&self.0);
        let end = (until, JobId::from_bytes([0xff; 16]));
        MAX_LOG_BYTES.saturating_sub(inner.from_log.range(..=end).map(|(_, size)| size).sum())
    }

    pub(crate) fn lease(&self, id: JobId, payload: Bytes) {
        lock(&self.0).leased.insert(id, payload);
    }

    pub(crate) fn take_leased(&self, id: JobId) -> Option<Bytes> {
        lock(&self.0).leased.remove(&id)
    }

    pub(crate) fn retain_leased(&self, mut is_leased: impl FnMut(JobId) -> bool) {
        lock(&self.0).leased.retain(|id, _| is_leased(*id));
    }
}

impl Inner {
    fn put(&mut self, queue: &QueueName, id: JobId, due: Timestamp, buffered: Buffered) {
        let size = buffered.size();
        if matches!(buffered.origin, Origin::Log) {
            self.log_bytes += size;
            self.from_log.insert((due, id), size);
        } else {
            self.other_bytes += size;
        }
        self.places.insert(id, (queue.clone(), due));
        self.waiting.entry(queue.clone()).or_default().insert((due, id), buffered);
    }

    /// Adds the payload of a job that is here without one, if there is room.
    fn complete(&mut self, id: JobId, payload: &Bytes) {
        let has_room = self.other_bytes + payload.len() <= MAX_BYTES;
        if let Some((queue, due)) = self.places.get(&id)
            && let Some(jobs) = self.waiting.get_mut(queue)
            && let Some(buffered) = jobs.get_mut(&(*due, id))
            && buffered.payload.is_none()
            && has_room
        {
            buffered.payload = Some(payload.clone());
            self.other_bytes += payload.len();
        }
    }

    fn take(&mut self, id: JobId) -> Option<Buffered> {
        let (queue, due) = self.places.remove(&id)?;
        let jobs = self.waiting.get_mut(&queue)?;
        let taken = jobs.remove(&(due, id))?;
        if jobs.is_empty() {
            self.waiting.remove(&queue);
        }
        match self.from_log.remove(&(due, id)) {
            Some(size) => self.log_bytes -= size,
            None => self.other_bytes -= taken.size(),
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u8, due: i64) -> Job {
        let due = Timestamp::from_millis(due);
        let queue = QueueName::new("q").unwrap();
        Job::new(JobId::from_bytes([number; 16]), queue, due, due, Bytes::new())
    }

    fn insert(buffer: &PayloadBuffer, job: &Job, bytes: usize) {
        let payload = Bytes::from(vec![0; bytes]);
        buffer.insert(&job.queue, job.id, job.due, payload, Origin::Own);
    }

    #[test]
    fn the_buffer_is_limited_in_bytes() {
        let buffer = PayloadBuffer::default();
        let [first, second, third] = [1, 2, 3].map(|number| job(number, 0));
        insert(&buffer, &first, MAX_BYTES / 2);
        insert(&buffer, &second, MAX_BYTES / 2 - 2 * OVERHEAD);
        insert(&buffer, &third, 1);
        assert!(buffer.contains(first.id) && buffer.contains(second.id));
        assert!(!buffer.contains(third.id));
        insert(&buffer, &second, MAX_BYTES / 2 - 2 * OVERHEAD);
        assert!(buffer.contains(second.id));
        buffer.discard([first.id]);
        insert(&buffer, &third, 1);
        assert!(buffer.contains(third.id));
    }

    #[test]
    fn a_job_without_its_payload_gets_it_from_the_log() {
        let (buffer, job) = (PayloadBuffer::default(), job(1, 0));
        buffer.insert_without_payload(&job.queue, job.id, job.due);
        let payload = Bytes::from_static(b"payload");
        buffer.insert_from_log(&job, &payload);
        assert_eq!(buffer.take(job.id).unwrap().into_payload(), Some(payload));
    }

    #[test]
    fn payloads_from_the_log_that_are_needed_first_are_kept() {
        let buffer = PayloadBuffer::default();
        let third = Bytes::from(vec![0; MAX_LOG_BYTES / 3]);
        let jobs = [30, 10, 20, 40].map(|due| job(due, due.into()));
        buffer.insert_from_log(&jobs[0], &third);
        assert!(!buffer.contains(jobs[0].id), "the queue is not served");
        buffer.serve(&jobs[0].queue);
        for job in &jobs {
            buffer.insert_from_log(job, &third);
        }
        let kept = jobs.each_ref().map(|job| buffer.contains(job.id));
        assert_eq!(kept, [false, true, true, false], "three do not fit, with their overhead");
        let room = |until| buffer.room_for_log(Timestamp::from_millis(until));
        let used = third.len() + OVERHEAD;
        let expected = [MAX_LOG_BYTES, MAX_LOG_BYTES - used, MAX_LOG_BYTES - 2 * used];
        assert_eq!([9, 10, 20].map(room), expected);
        insert(&buffer, &jobs[1], 7);
        buffer.insert_from_log(&jobs[1], &third);
        let payload = buffer.take(jobs[1].id).and_then(Buffered::into_payload);
        assert_eq!(payload.map(|payload| payload.len()), Some(7), "what is there stays");
        buffer.discard(jobs.map(|job| job.id));
        let inner = lock(&buffer.0);
        assert_eq!((inner.log_bytes, inner.other_bytes), (0, 0));
        assert!(inner.from_log.is_empty() && inner.waiting.is_empty() && inner.places.is_empty());
    }
}
