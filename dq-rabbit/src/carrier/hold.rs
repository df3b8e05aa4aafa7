//! What has arrived and waits for its moment: the last seconds, for which it does not go through queues of
//! the broker, and until there is a free slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dq_core::{Headers, JobId, QueueName, Timestamp, Want};

use super::acks::Ticket;

/// Bytes of payloads that are held. The jobs of what is more are run from the log.
const ROOM: usize = 256 * 1024 * 1024;

/// Jobs whose payloads are at hand, in order of their due times.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_queue: HashMap<QueueName, BTreeMap<(Timestamp, JobId), Held>>,
    dues: HashMap<JobId, (QueueName, Timestamp)>,
    bytes: usize,
}

/// A payload, and the delivery that brought it, if one did.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
    pub(crate) ticket: Option<Ticket>,
}

impl Held {
    fn bytes(&self) -> usize {
        self.payload.len() + self.headers.bytes()
    }

    /// Takes the payload; the message that brought it can go.
    pub(crate) fn into_payload(self) -> (Bytes, Headers) {
        if let Some(ticket) = self.ticket {
            ticket.done();
        }
        (self.payload, self.headers)
    }
}

impl Hold {
    /// Keeps a payload of a job that is due then, if there is room. One that was here before goes.
    pub(crate) fn keep(&self, queue: &QueueName, id: JobId, due: Timestamp, held: Held) {
        let gone = {
            let mut inner = self.inner();
            let before = inner.remove(id);
            if inner.bytes + held.bytes() > ROOM {
                [before, Some(held)]
            } else {
                inner.bytes += held.bytes();
                inner.dues.insert(id, (queue.clone(), due));
                inner.by_queue.entry(queue.clone()).or_default().insert((due, id), held);
                [before, None]
            }
        };
        for gone in gone.into_iter().flatten() {
            gone.into_payload();
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
        self.bytes -= taken.as_ref().map_or(0, Held::bytes);
        if held.is_empty() {
            self.by_queue.remove(&queue);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_not_held() {
        let hold = Hold::default();
        let queue = QueueName::new("q").unwrap();
        let id = |number| JobId::from_bytes([number; 16]);
        let keep = |number, bytes| {
            let payload = Bytes::from(vec![0; bytes]);
            let held = Held { payload, headers: Headers::new(), ticket: None };
            hold.keep(&queue, id(number), Timestamp::EPOCH, held);
        };
        keep(1, ROOM / 2);
        keep(2, ROOM / 2);
        keep(3, 1);
        assert!(hold.has(id(1)) && hold.has(id(2)) && !hold.has(id(3)));
        assert_eq!(hold.take(id(1)).unwrap().payload.len(), ROOM / 2);
        keep(3, 1);
        assert!(hold.has(id(3)));
        // In the place of itself it takes no room.
        keep(2, ROOM / 2);
        assert!(hold.has(id(2)));
    }
}
