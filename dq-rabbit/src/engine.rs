//! The engine executes calls with the log, the publisher and the payload buffer. `schedule.rs`,
//! `claim.rs`, `settle.rs` and others have a method for each call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{DeadReason, Job, Timestamp};

use crate::grant::Releases;
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
    /// How long before its due time a delivered job goes into the buffer. An earlier one is
    /// published again.
    pub(crate) max_early: Duration,
    pub(crate) claim_counts: ClaimCounts,
    pub(crate) misses: Misses,
    pub(crate) releases: Releases,
    pub(crate) quarantined: Quarantined,
}

/// Jobs that this process made dead because they cannot be read, until a claim returns them.
#[derive(Debug, Default)]
pub(crate) struct Quarantined(Mutex<Vec<(Job, DeadReason)>>);

impl Quarantined {
    /// A process that does not claim must not gather jobs without end.
    const MAX: usize = 1_000;

    pub(crate) fn add(&self, job: Job, reason: DeadReason) {
        let mut jobs = lock(&self.0);
        if jobs.len() < Self::MAX {
            jobs.push((job, reason));
        }
    }

    pub(crate) fn take(&self) -> Vec<(Job, DeadReason)> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Counts the first claims of jobs that should have a message, by whether it had come.
#[derive(Debug, Default)]
pub(crate) struct ClaimCounts {
    prefetched: AtomicU64,
    not_prefetched: AtomicU64,
}

impl Engine {
    /// The id of the log; `None` while the replica is being restored.
    pub(crate) fn log_id(&self) -> Option<u64> {
        self.log.peek(|replica| replica.is_ready().then(|| replica.log_id()))
    }

    pub(crate) fn needs_message(&self, due: Timestamp, now: Timestamp) -> bool {
        due > now + MIN_MESSAGE_DELAY
    }

    pub(crate) fn count_claim(&self, was_prefetched: bool) {
        if !was_prefetched {
            self.misses.note(self.log.now());
        }
        let ClaimCounts { prefetched, not_prefetched } = &self.claim_counts;
        let counter = if was_prefetched { prefetched } else { not_prefetched };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many jobs were claimed after their message came, and how many before.
    pub(crate) fn claim_counts(&self) -> (u64, u64) {
        let ClaimCounts { prefetched, not_prefetched } = &self.claim_counts;
        (prefetched.load(Ordering::Relaxed), not_prefetched.load(Ordering::Relaxed))
    }

    /// Puts the payload of a waiting job into the buffer if it is due soon, else returns the
    /// message to publish. While the replica is being restored there is no message, and the job
    /// runs from the log.
    #[must_use = "messages have to be published"]
    pub(crate) fn buffer_or_publish(
        &self,
        job: &ReplicaJob,
        payload: Bytes,
        now: Timestamp,
    ) -> Option<PublishedJob> {
        if self.needs_message(job.job.due, now) {
            let ReplicaJob { job, stored } = job;
            self.log_id()
                .map(|log_id| PublishedJob::from_job(log_id, job, stored.headers(), payload))
        } else {
            let Job { queue, id, due, .. } = &job.job;
            self.payloads.insert(queue, *id, *due, payload, Origin::Own);
            None
        }
    }

    /// Publishes messages for these waiting jobs in the background, unless they are due soon. Reads
    /// missing payloads from the log.
    pub(crate) fn publish_waiting(self: &Arc<Self>, jobs: Vec<ReplicaJob>, now: Timestamp) {
        let mut unread = Vec::new();
        let mut messages = Vec::new();
        for job in jobs {
            let Job { queue, id, due, .. } = &job.job;
            if !self.needs_message(*due, now) {
                self.payloads.insert_without_payload(queue, *id, *due);
                continue;
            }
            if !self.publisher.has_messages() {
                // The buffered payload belongs to the earlier due time.
                self.payloads.discard([*id]);
                continue;
            }
            let payload = self.payloads.take(*id).and_then(Buffered::into_payload);
            match payload.filter(|payload| job.stored.payload.is_of(payload)) {
                Some(payload) => messages.extend(self.buffer_or_publish(&job, payload, now)),
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
            let messages = unread.iter().filter_map(|job| {
                engine.buffer_or_publish(job, payloads.remove(&job.job.id)?, now)
            });
            drop(engine.publisher.start_publishing(messages.collect(), now));
            Ok(())
        });
    }
}
