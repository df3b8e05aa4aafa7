//! The engine: executes the calls of the backend with the log, the publisher and the prefetch
//! buffer. Its methods for each kind of call are in `schedule.rs`, `claim.rs`, `settle.rs` …

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{DeadReason, Job, JobId, Timestamp};

use crate::grant::Releases;
use crate::log::wire::Checksum;
use crate::log::{Log, LogPosition, PayloadRef, headers_of};
use crate::message::{MAX_OVERDUE, PrefetchBuffer, Prefetched, PublishedJob, Publisher};
use crate::read_ahead::ReadAhead;

/// Jobs with a shorter delay get no message: all processes read their payload from the log now, and
/// still have it in the cache when the job is due.
const MIN_MESSAGE_DELAY: Duration = Duration::from_secs(1);

/// Executes the calls of an open backend.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) prefetched: PrefetchBuffer,
    pub(crate) publisher: Arc<Publisher>,
    /// How long before its due time a delivered job is put into the prefetch buffer. A job that is
    /// delivered earlier is published again.
    pub(crate) max_early: Duration,
    claim_counts: ClaimCounts,
    pub(crate) read_ahead: ReadAhead,
    /// Leases that nobody waits for any more.
    pub(crate) releases: Releases,
    /// Payloads of jobs that this process has leased.
    leased: Mutex<HashMap<JobId, Bytes>>,
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
        publisher: Arc<Publisher>,
        max_early: Duration,
        releases: Releases,
    ) -> Self {
        let read_ahead = ReadAhead::new(!publisher.has_messages());
        Self {
            log,
            read_ahead,
            prefetched: PrefetchBuffer::default(),
            publisher,
            max_early,
            claim_counts: ClaimCounts::default(),
            releases,
            leased: Mutex::default(),
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

    /// Keeps the payload of a leased job, for the message of a retry.
    pub(crate) fn keep_leased_payload(&self, id: JobId, payload: Bytes) {
        lock(&self.leased).insert(id, payload);
    }

    /// Takes the payload of a job whose lease has ended.
    pub(crate) fn take_leased_payload(&self, id: JobId) -> Option<Bytes> {
        lock(&self.leased).remove(&id)
    }

    /// Frees payloads that are not needed any more: of prefetched jobs that are long overdue or do
    /// not wait any more, and of lapsed leases.
    pub(crate) fn prune_payloads(&self) {
        let now = self.log.now();
        self.drop_prefetched(self.prefetched.due_by(now - MAX_OVERDUE));
        self.drop_stale(self.prefetched.due_by(now));
        let mut leased = lock(&self.leased);
        self.log.peek(|replica| leased.retain(|id, _| replica.machine().is_leased(*id)));
    }

    /// Drops those of these prefetched jobs that do not wait any more.
    pub(crate) fn drop_stale(&self, mut ids: Vec<JobId>) {
        self.log.peek(|replica| {
            let machine = replica.machine();
            ids.retain(|id| !machine.is_waiting(*id));
        });
        self.drop_prefetched(ids);
    }

    /// Drops prefetched jobs and acknowledges their messages.
    fn drop_prefetched(&self, ids: Vec<JobId>) {
        for mut prefetched in ids.into_iter().filter_map(|id| self.prefetched.take(id)) {
            prefetched.ack();
        }
    }

    /// Takes the payload of a prefetched job of the replica and acknowledges its message. `None` if
    /// the job is not prefetched, or has another payload in the log.
    pub(crate) fn take_prefetched(&self, job: &Job) -> Option<Bytes> {
        self.take_checked(job, self.prefetched.take(job.id)?)
    }

    /// The payload that was prefetched for this job, if it is the one of the log. Acknowledges its
    /// message.
    pub(crate) fn take_checked(&self, job: &Job, mut prefetched: Prefetched) -> Option<Bytes> {
        prefetched.ack();
        let payload = prefetched.into_payload()?;
        (Checksum::of(&payload) == PayloadRef::of(job).checksum).then_some(payload)
    }

    /// Makes the payload of a waiting job available when it is due: puts it into the prefetch
    /// buffer if that is soon, else returns the message to publish. While the replica is being
    /// restored, there is no message, and the job runs from the log.
    #[must_use = "messages have to be published"]
    pub(crate) fn prefetch_or_publish(
        &self,
        job: &Job,
        payload: Bytes,
        now: Timestamp,
    ) -> Option<PublishedJob> {
        if self.needs_message(job.due, now) {
            self.log_id()
                .map(|log_id| PublishedJob::from_job(log_id, job, headers_of(job), payload))
        } else {
            self.prefetched.insert(&job.queue, job.id, job.due, Prefetched::local(payload));
            None
        }
    }

    /// Publishes messages for these waiting jobs in the background, unless they are due soon or there
    /// are no messages.
    /// Payloads that are not in the prefetch buffer are read from the log.
    pub(crate) fn publish_waiting(self: &Arc<Self>, jobs: Vec<Job>, now: Timestamp) {
        let mut unread = Vec::new();
        let mut messages = Vec::new();
        for job in jobs {
            if !self.needs_message(job.due, now) {
                self.prefetched.insert_without_payload(&job.queue, job.id, job.due);
                continue;
            }
            if !self.publisher.has_messages() {
                // The job is read ahead when it is due. What is buffered is of its earlier due time.
                self.drop_prefetched(vec![job.id]);
                continue;
            }
            match self.take_prefetched(&job) {
                Some(payload) => messages.extend(self.prefetch_or_publish(&job, payload, now)),
                None => unread.push(job),
            }
        }
        drop(self.publisher.start_publishing(messages, now));
        if unread.is_empty() {
            return;
        }
        let engine = Arc::clone(self);
        self.publisher.spawn(async move {
            let payloads = engine.log.fetch(unread.iter().map(LogPosition::of).collect()).await?;
            let messages = unread
                .iter()
                .filter_map(|job| engine.prefetch_or_publish(job, payloads.of(job)?, now));
            drop(engine.publisher.start_publishing(messages.collect(), now));
            Ok(())
        });
    }
}
