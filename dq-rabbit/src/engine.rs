//! The engine executes calls with the log, the publisher and the payload buffer. `schedule.rs`,
//! `claim.rs`, `settle.rs` and others have a method for each call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{DeadReason, Job, Lease, Timestamp};
use tokio::sync::mpsc::UnboundedSender;

use crate::log::{Log, ReadPurpose, ReplicaJob};
use crate::message::{PublishedJob, Publisher};
use crate::payloads::buffer::{Buffered, Origin, PayloadBuffer};
use crate::payloads::misses::Misses;

/// Jobs with a shorter delay get no message: their payload is still in each process's cache when
/// they are due.
const MIN_MESSAGE_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) payloads: Arc<PayloadBuffer>,
    pub(crate) publisher: Arc<Publisher>,
    /// An earlier delivery is published again.
    pub(crate) max_early: Duration,
    pub(crate) misses: Misses,
    /// Leases to release in the background.
    pub(crate) releases: UnboundedSender<Lease>,
    /// Jobs that claims made dead because they cannot be read, until a claim returns them.
    pub(crate) quarantined: Mutex<Vec<(Job, DeadReason)>>,
}

impl Engine {
    /// The id of the log; `None` while the replica is being restored.
    pub(crate) fn log_id(&self) -> Option<u64> {
        self.log.peek(|replica| replica.is_ready().then(|| replica.log_id()))
    }

    pub(crate) fn needs_message(&self, due: Timestamp, now: Timestamp) -> bool {
        due > now + MIN_MESSAGE_DELAY
    }

    /// Delivers the payloads of waiting jobs: to the buffer if they are due soon, else by messages,
    /// in the background. A payload that is not given is taken from the buffer or read from the
    /// log.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        jobs: Vec<(ReplicaJob, Option<Bytes>)>,
        now: Timestamp,
    ) {
        let mut unread = Vec::new();
        let mut messages = Vec::new();
        for (job, payload) in jobs {
            let Job { queue, id, due, .. } = &job.job;
            if !self.needs_message(*due, now) {
                match payload {
                    Some(payload) => self.payloads.insert(queue, *id, *due, payload, Origin::Own),
                    None => self.payloads.insert_without_payload(queue, *id, *due),
                }
                continue;
            }
            if !self.publisher.has_messages() {
                // The buffered payload belongs to the earlier due time.
                self.payloads.discard([*id]);
                continue;
            }
            let buffered = || self.payloads.take(*id).and_then(Buffered::into_payload);
            let payload = payload.or_else(buffered);
            match payload.filter(|payload| job.stored.payload.is_of(payload)) {
                Some(payload) => messages.extend(self.message(&job, payload)),
                None => unread.push(job),
            }
        }
        drop(self.publisher.start_publishing(messages, now));
        if unread.is_empty() {
            return;
        }
        let engine = Arc::clone(self);
        self.publisher.spawn(async move {
            let stored = unread.iter().map(|job| (job.job.id, job.stored.payload));
            let mut payloads = engine.log.read_payloads(stored, ReadPurpose::View).await?;
            let message = |job: &ReplicaJob| engine.message(job, payloads.remove(&job.job.id)?);
            let messages = unread.iter().filter_map(message).collect();
            drop(engine.publisher.start_publishing(messages, now));
            Ok(())
        });
    }

    /// While the replica is being restored, there is no message, and the job runs from the log.
    fn message(&self, job: &ReplicaJob, payload: Bytes) -> Option<PublishedJob> {
        let ReplicaJob { job, stored } = job;
        Some(PublishedJob::from_job(self.log_id()?, job, stored.headers(), payload))
    }
}
