//! What has arrived and waits for its moment: the last fraction of a second, which queues of the broker
//! cannot measure, and until there is a free slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dq_core::{Headers, JobId, QueueName, Timestamp, Want};

use super::acks::Ticket;

/// Jobs whose payloads are at hand, in order of their due times.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_queue: HashMap<QueueName, BTreeMap<(Timestamp, JobId), Held>>,
    dues: HashMap<JobId, (QueueName, Timestamp)>,
}

/// A payload, and the delivery that brought it, if one did.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
    pub(crate) ticket: Option<Ticket>,
}

impl Held {
    /// Takes the payload; the message that brought it can go.
    pub(crate) fn into_payload(self) -> (Bytes, Headers) {
        if let Some(ticket) = self.ticket {
            ticket.done();
        }
        (self.payload, self.headers)
    }
}

impl Hold {
    /// Keeps a payload of a job that is due then. One that was here before goes.
    pub(crate) fn keep(&self, queue: &QueueName, id: JobId, due: Timestamp, held: Held) {
        let before = {
            let mut inner = self.inner();
            let before = inner.remove(id);
            inner.dues.insert(id, (queue.clone(), due));
            inner.by_queue.entry(queue.clone()).or_default().insert((due, id), held);
            before
        };
        if let Some(before) = before {
            before.into_payload();
        }
    }

    /// Takes what is held of a job.
    pub(crate) fn take(&self, id: JobId) -> Option<Held> {
        self.inner().remove(id)
    }

    /// Whether the payload of a job is here.
    pub(crate) fn has(&self, id: JobId) -> bool {
        self.inner().dues.contains_key(&id)
    }

    /// The oldest jobs that are due now: of each queue at most as many as are wanted.
    pub(crate) fn due(&self, wants: &[Want], now: Timestamp) -> Vec<JobId> {
        let inner = self.inner();
        let of_queue = |want: &Want| {
            let held = inner.by_queue.get(&want.queue);
            let due = held.into_iter().flat_map(BTreeMap::keys);
            due.take_while(|(due, _)| *due <= now).take(want.max).map(|(_, id)| *id).collect()
        };
        wants.iter().flat_map(|want| -> Vec<_> { of_queue(want) }).collect()
    }

    /// The jobs that were due then or earlier.
    pub(crate) fn older_than(&self, then: Timestamp) -> Vec<JobId> {
        let inner = self.inner();
        let due = inner
            .by_queue
            .values()
            .flat_map(|held| held.keys().take_while(|(due, _)| *due <= then).map(|(_, id)| *id));
        due.collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn remove(&mut self, id: JobId) -> Option<Held> {
        let (queue, due) = self.dues.remove(&id)?;
        let held = self.by_queue.get_mut(&queue)?;
        let taken = held.remove(&(due, id));
        if held.is_empty() {
            self.by_queue.remove(&queue);
        }
        taken
    }
}
