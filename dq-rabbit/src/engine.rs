//! The engine: executes the calls of the backend with the log, the publisher and the payload
//! buffer. Its methods for each kind of call are in `schedule.rs`, `claim.rs`, `settle.rs` …

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{DeadReason, Job, JobId, Timestamp, Want};

use crate::buffer::{Buffered, Origin, PayloadBuffer};
use crate::grant::Releases;
use crate::log::wire::Checksum;
use crate::log::{Log, PayloadRef, ReadPurpose, headers_of};
use crate::message::{PublishedJob, Publisher};
use crate::read_ahead::ReadAhead;

/// Jobs with a shorter delay get no message: all processes read their payload from the log now, and
/// still have it in the cache when the job is due.
const MIN_MESSAGE_DELAY: Duration = Duration::from_secs(1);

/// Executes the calls of an open backend.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) payloads: Arc<PayloadBuffer>,
    pub(crate) publisher: Arc<Publisher>,
    /// How long before its due time a delivered job is put into the payload buffer. A job that is
    /// delivered earlier is published again.
    pub(crate) max_early: Duration,
    claim_counts: ClaimCounts,
    pub(crate) read_ahead: ReadAhead,
    /// Leases that nobody waits for any more.
    pub(crate) releases: Releases,
    pub(crate) quarantined: Quarantined,
}

/// Jobs that this process has made dead because they cannot be read, until a claim returns them.
#[derive(Debug, Default)]
pub(crate) struct Quarantined(Mutex<Vec<(Job, DeadReason)>>);

impl Quarantined {
    /// A process that does not claim must not gather them without end.
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

/// How many jobs had their messages when they were claimed first.
#[derive(Debug, Default)]
struct ClaimCounts {
    prefetched: AtomicU64,
    not_prefetched: AtomicU64,
}

impl Engine {
    pub(crate) fn new(
        log: Log,
        payloads: Arc<PayloadBuffer>,
        publisher: Arc<Publisher>,
        max_early: Duration,
        releases: Releases,
    ) -> Self {
        let read_ahead = ReadAhead::new(!publisher.has_messages());
        Self {
            log,
            read_ahead,
            payloads,
            publisher,
            max_early,
            claim_counts: ClaimCounts::default(),
            releases,
            quarantined: Quarantined::default(),
        }
    }

    /// The id of the log, which messages contain; `None` while the replica is being restored.
    pub(crate) fn log_id(&self) -> Option<u64> {
        self.log.peek(|replica| replica.is_ready().then(|| replica.log_id()))
    }

    /// Whether a job that is due at `due` gets a message.
    pub(crate) fn needs_message(&self, due: Timestamp, now: Timestamp) -> bool {
        due > now + MIN_MESSAGE_DELAY
    }

    /// Counts the first claim of a job with a message.
    pub(crate) fn count_claim(&self, was_prefetched: bool) {
        if !was_prefetched {
            self.read_ahead.note_miss(self.log.now());
        }
        let ClaimCounts { prefetched, not_prefetched } = &self.claim_counts;
        let counter = if was_prefetched { prefetched } else { not_prefetched };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many jobs with a message were claimed with and without a prefetched payload.
    pub(crate) fn claim_counts(&self) -> (u64, u64) {
        let ClaimCounts { prefetched, not_prefetched } = &self.claim_counts;
        (prefetched.load(Ordering::Relaxed), not_prefetched.load(Ordering::Relaxed))
    }

    /// Frees payloads that are not needed any more: of jobs that do not wait any more, of messages
    /// that have waited too long, and of lapsed leases.
    pub(crate) fn prune_payloads(&self) {
        let (due, expired) = self.payloads.all_due(self.log.now());
        self.payloads.discard(expired);
        self.drop_stale(due);
        self.log.peek(|replica| {
            self.payloads.retain_leased(|id| replica.machine().is_leased(id));
        });
    }

    /// The due jobs of the buffer that wait: others would take their place in a claim.
    pub(crate) fn due_payloads(&self, wants: &[Want], until: Timestamp) -> Vec<JobId> {
        loop {
            let due = self.payloads.due(wants, until);
            if !self.drop_stale(due.clone()) {
                return due;
            }
        }
    }

    /// Drops those of these jobs from the buffer that do not wait any more. Whether there were any.
    fn drop_stale(&self, mut ids: Vec<JobId>) -> bool {
        self.log.peek(|replica| {
            let machine = replica.machine();
            ids.retain(|id| !machine.is_waiting(*id));
        });
        let has_stale = !ids.is_empty();
        self.payloads.discard(ids);
        has_stale
    }

    /// Makes the payload of a waiting job available when it is due: puts it into the buffer if that is
    /// soon, else returns the message to publish. While the replica is being restored, there is no
    /// message, and the job runs from the log.
    #[must_use = "messages have to be published"]
    pub(crate) fn buffer_or_publish(
        &self,
        job: &Job,
        payload: Bytes,
        now: Timestamp,
    ) -> Option<PublishedJob> {
        if self.needs_message(job.due, now) {
            self.log_id()
                .map(|log_id| PublishedJob::from_job(log_id, job, headers_of(job), payload))
        } else {
            self.payloads.insert(&job.queue, job.id, job.due, payload, Origin::Own);
            None
        }
    }

    /// Publishes messages for these waiting jobs in the background, unless they are due soon or there
    /// are no messages.
    /// Payloads that are not in the buffer are read from the log.
    pub(crate) fn publish_waiting(self: &Arc<Self>, jobs: Vec<Job>, now: Timestamp) {
        let mut unread = Vec::new();
        let mut messages = Vec::new();
        for job in jobs {
            if !self.needs_message(job.due, now) {
                self.payloads.insert_without_payload(&job.queue, job.id, job.due);
                continue;
            }
            if !self.publisher.has_messages() {
                // The job is read ahead when it is due. What is buffered is of its earlier due time.
                self.payloads.discard([job.id]);
                continue;
            }
            let payload = self.payloads.take(job.id).and_then(Buffered::into_payload);
            match payload.filter(|payload| is_payload_of(payload, &job)) {
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
            let stored = unread.iter().map(|job| (job.id, PayloadRef::of(job)));
            let mut payloads = engine.log.read_payloads(stored, ReadPurpose::View).await?;
            let messages = unread
                .iter()
                .filter_map(|job| engine.buffer_or_publish(job, payloads.remove(&job.id)?, now));
            drop(engine.publisher.start_publishing(messages.collect(), now));
            Ok(())
        });
    }
}

/// Whether this is the payload that a job of the replica has in the log: messages may bring others.
pub(crate) fn is_payload_of(payload: &[u8], job: &Job) -> bool {
    Checksum::of(payload) == PayloadRef::of(job).checksum
}
