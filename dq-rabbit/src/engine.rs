//! Executes calls with the log, the publisher and the payload buffer. `schedule.rs`, `claim.rs`,
//! `settle.rs` and others have a method for each call.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{DeadReason, Job, JobId, Timestamp, Want};
use tokio::sync::Notify;

use crate::grant::Releases;
use crate::log::{Log, ReadPurpose, ReplicaJob};
use crate::message::{PublishedJob, Publisher};
use crate::payloads::buffer::{Buffered, MAX_OVERDUE, Origin, PayloadBuffer};

/// Jobs with a shorter delay get no message: their payload is still in each process's cache when
/// they are due.
const MIN_MESSAGE_DELAY: Duration = Duration::from_secs(1);

/// How long to read ahead after a job was claimed before its message came.
const READ_AHEAD_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) log: Log,
    pub(crate) payloads: Arc<PayloadBuffer>,
    pub(crate) publisher: Arc<Publisher>,
    /// How long before its due time a delivered job goes into the buffer. An earlier one is
    /// published again.
    pub(crate) max_early: Duration,
    claim_counts: ClaimCounts,
    pub(crate) read_ahead: ReadAhead,
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

/// First claims of jobs that should have a message, by whether it had come.
#[derive(Debug, Default)]
struct ClaimCounts {
    prefetched: AtomicU64,
    not_prefetched: AtomicU64,
}

/// When to read payloads ahead.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    /// When a job was last claimed before its message came, in Unix milliseconds.
    missed_at: AtomicI64,
    /// Wakes the task, so that it does not wait for its next pass.
    pub(crate) missed: Notify,
    /// Without a ladder, no job has a message.
    is_permanent: bool,
}

impl ReadAhead {
    fn new(is_permanent: bool) -> Self {
        Self { missed_at: AtomicI64::new(i64::MIN), missed: Notify::new(), is_permanent }
    }

    /// A job was claimed before its message came. A payload that was read ahead counts too, so that
    /// reading ahead goes on as long as messages are missing.
    fn note_miss(&self, now: Timestamp) {
        self.missed_at.store(now.as_millis(), Ordering::Relaxed);
        self.missed.notify_one();
    }

    pub(crate) fn is_active(&self, now: Timestamp) -> bool {
        let missed_at = Timestamp::from_millis(self.missed_at.load(Ordering::Relaxed));
        self.is_permanent || now < missed_at + READ_AHEAD_FOR
    }
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

    /// The id of the log; `None` while the replica is being restored.
    pub(crate) fn log_id(&self) -> Option<u64> {
        self.log.peek(|replica| replica.is_ready().then(|| replica.log_id()))
    }

    pub(crate) fn needs_message(&self, due: Timestamp, now: Timestamp) -> bool {
        due > now + MIN_MESSAGE_DELAY
    }

    pub(crate) fn count_claim(&self, was_prefetched: bool) {
        if !was_prefetched {
            self.read_ahead.note_miss(self.log.now());
        }
        let ClaimCounts { prefetched, not_prefetched } = &self.claim_counts;
        let counter = if was_prefetched { prefetched } else { not_prefetched };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// How many jobs were claimed after and before their message came.
    pub(crate) fn claim_counts(&self) -> (u64, u64) {
        let ClaimCounts { prefetched, not_prefetched } = &self.claim_counts;
        (prefetched.load(Ordering::Relaxed), not_prefetched.load(Ordering::Relaxed))
    }

    /// Frees payloads that are not needed any more.
    pub(crate) fn prune_payloads(&self) {
        let now = self.log.now();
        let mut due = self.payloads.all_due(now);
        let expired = due.extract_if(.., |(due, _)| *due + MAX_OVERDUE <= now);
        self.payloads.discard(expired.map(|(_, id)| id));
        self.drop_stale(due);
        self.log.peek(|replica| {
            self.payloads.retain_leased(|id| replica.machine().is_leased(id));
        });
    }

    /// The due jobs in the buffer that still wait. Others would take their place in a claim.
    pub(crate) fn due_payloads(&self, wants: &[Want], until: Timestamp) -> Vec<JobId> {
        loop {
            let due = self.payloads.due(wants, until);
            if !self.drop_stale(due.clone()) {
                return due.into_iter().map(|(_, id)| id).collect();
            }
        }
    }

    /// Drops jobs from the buffer that do not wait any more or have another due time. Returns
    /// whether there were any. A replica that is still being read does not know.
    fn drop_stale(&self, mut jobs: Vec<(Timestamp, JobId)>) -> bool {
        self.log.peek(|replica| {
            let is_ready = replica.is_ready();
            let machine = replica.machine();
            let waits = |(due, id): &(Timestamp, JobId)| {
                machine.is_waiting(*id) && machine.peek(*id).is_some_and(|job| job.due == *due)
            };
            jobs.retain(|job| is_ready && !waits(job));
        });
        let has_stale = !jobs.is_empty();
        self.payloads.discard(jobs.into_iter().map(|(_, id)| id));
        has_stale
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
