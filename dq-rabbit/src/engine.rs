//! The engine: executes the calls of the backend with the log, the publisher and the prefetch
//! buffer. Its methods for each kind of call are in `schedule.rs`, `claim.rs`, `settle.rs` …

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Entropy, Headers, Job, JobId, Timestamp};

use crate::log::{Log, LogPosition};
use crate::message::{PrefetchBuffer, Prefetched, PublishedJob, Publisher};

/// Jobs with a shorter delay get no message: all processes read their payload from the log now, and
/// still have it in the cache when the job is due.
const MIN_MESSAGE_DELAY: Duration = Duration::from_secs(1);

/// How long an overdue job stays in the prefetch buffer while no slot is free. Must be less than
/// the broker's `consumer_timeout`, half an hour by default, after which it redelivers the message.
/// Jobs that are dropped from the buffer run from the log.
const MAX_OVERDUE: Duration = Duration::from_secs(600);

/// Executes the calls of an open backend.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) prefetched: PrefetchBuffer,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) entropy: Arc<Entropy>,
    /// How long before its due time a delivered job is put into the prefetch buffer. A job that is
    /// delivered earlier is published again.
    pub(crate) max_early: Duration,
    claim_counts: ClaimCounts,
    /// Payload and headers of jobs that this process has leased.
    leased: Mutex<HashMap<JobId, (Bytes, Headers)>>,
}

/// How many first claims of jobs with a message found the payload in the prefetch buffer.
#[derive(Debug, Default)]
struct ClaimCounts {
    prefetched: AtomicU64,
    not_prefetched: AtomicU64,
}

impl Engine {
    pub(crate) fn new(
        log: Log,
        publisher: Arc<Publisher>,
        entropy: Arc<Entropy>,
        max_early: Duration,
    ) -> Self {
        Self {
            log,
            prefetched: PrefetchBuffer::default(),
            publisher,
            entropy,
            max_early,
            claim_counts: ClaimCounts::default(),
            leased: Mutex::default(),
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
    pub(crate) fn keep_leased_payload(&self, id: JobId, payload: (Bytes, Headers)) {
        lock(&self.leased).insert(id, payload);
    }

    /// Takes the payload of a job whose lease has ended.
    pub(crate) fn take_leased_payload(&self, id: JobId) -> Option<(Bytes, Headers)> {
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

    /// Takes the payload of a prefetched job and acknowledges its message.
    pub(crate) fn take_prefetched(&self, id: JobId) -> Option<(Bytes, Headers)> {
        let mut prefetched = self.prefetched.take(id)?;
        prefetched.ack();
        Some(prefetched.into_payload())
    }

    /// Makes the payload of a waiting job available when it is due: puts it into the prefetch
    /// buffer if that is soon, else returns the message to publish. While the replica is being
    /// restored, there is no message, and the job runs from the log.
    #[must_use = "messages have to be published"]
    pub(crate) fn prefetch_or_publish(
        &self,
        job: &Job,
        payload: (Bytes, Headers),
        now: Timestamp,
    ) -> Option<PublishedJob> {
        if self.needs_message(job.due, now) {
            self.log_id().map(|log_id| PublishedJob::from_job(log_id, job, payload))
        } else {
            self.prefetched.insert(&job.queue, job.id, job.due, Prefetched::local(payload));
            None
        }
    }

    /// Publishes messages for these waiting jobs in the background. Payloads that are not in the
    /// prefetch buffer are read from the log.
    pub(crate) fn publish_waiting(self: &Arc<Self>, jobs: Vec<Job>, now: Timestamp) {
        let mut unread = Vec::new();
        let mut messages = Vec::new();
        for job in jobs.into_iter().filter(|job| self.needs_message(job.due, now)) {
            match self.take_prefetched(job.id) {
                Some(payload) => messages.extend(self.prefetch_or_publish(&job, payload, now)),
                None => unread.push(job),
            }
        }
        self.publisher.publish_in_background(messages, now);
        if unread.is_empty() {
            return;
        }
        let engine = Arc::clone(self);
        self.publisher.spawn(async move {
            let payloads = engine.log.fetch(unread.iter().map(LogPosition::of).collect()).await?;
            let messages = unread.iter().filter_map(|job| {
                let payload = payloads.get(&LogPosition::of(job))?;
                engine.prefetch_or_publish(job, payload.clone(), now)
            });
            engine.publisher.publish("publish", messages.collect(), now).await
        });
    }
}
