//! The job itself, as it is handed in, as it is stored, and as it is looked at.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::codec;
use super::{DeadReason, Due, Headers, JobKey, OnConflict, QueueName, Timestamp};
use crate::error::{Error, ErrorKind, Result};

/// 128 bits made by the producer, ordered by time of making (UUID version 7).
///
/// Scheduling a job again with the id of one that is in the store changes nothing, so a call whose
/// answer was lost can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);

impl JobId {
    /// The id with these bytes, most significant first.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id's bytes, most significant first; their order is the order of ids.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        *self.0.as_bytes()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Uuid::parse_str(text).map(Self).map_err(|error| {
            Error::invalid(format!("{text:?} is not a job id"))
                .remedy("ids look like 0190b3e2-7a4f-7c11-8d2e-3f1a5b6c7d8e")
                .source(error)
        })
    }
}

/// A job as a producer hands it in. `Debug` does not show the payload.
#[derive(Clone)]
pub struct NewJob {
    /// Made by the producer; see [`JobId`].
    pub id: JobId,
    /// Where it goes.
    pub queue: QueueName,
    /// The caller's own name for it.
    pub key: Option<JobKey>,
    /// What to do when a live job has the same key.
    pub on_conflict: OnConflict,
    /// When it is due.
    pub due: Due,
    /// The encoded payload.
    pub payload: Bytes,
    /// Text beside the payload.
    pub headers: Headers,
    /// Overrides the queue's limit of attempts for this job.
    pub max_attempts: Option<u32>,
}

/// A job as the store keeps it. `Debug` does not show the payload.
#[derive(Clone, PartialEq, Eq)]
pub struct Job {
    /// Made by the producer.
    pub id: JobId,
    /// Where it lives.
    pub queue: QueueName,
    /// The caller's own name for it.
    pub key: Option<JobKey>,
    /// When it is due next: as scheduled, or as the last retry, snooze or reschedule put it.
    pub due: Timestamp,
    /// When the store accepted it, to within a second.
    pub created: Timestamp,
    /// The encoded payload.
    pub payload: Bytes,
    /// Text beside the payload.
    pub headers: Headers,
    /// This job's own limit of attempts.
    pub max_attempts: Option<u32>,
    /// Attempts that ended in failure so far.
    pub attempts: u32,
    /// Leases given out for it so far.
    pub deliveries: u32,
    /// Leases that lapsed in a row, that is, deliveries whose runner crashed or lost the store.
    pub losses: u32,
}

impl NewJob {
    /// A job without a key or headers, with the queue's limit of attempts.
    #[must_use]
    pub fn new(id: JobId, queue: QueueName, due: impl Into<Due>, payload: Bytes) -> Self {
        Self {
            id,
            queue,
            key: None,
            on_conflict: OnConflict::default(),
            due: due.into(),
            payload,
            headers: Headers::new(),
            max_attempts: None,
        }
    }

    /// Sets [`Self::key`].
    #[must_use]
    pub fn key(mut self, key: JobKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets [`Self::on_conflict`].
    #[must_use]
    pub const fn on_conflict(mut self, policy: OnConflict) -> Self {
        self.on_conflict = policy;
        self
    }

    /// Sets [`Self::due`].
    #[must_use]
    pub fn due(mut self, due: impl Into<Due>) -> Self {
        self.due = due.into();
        self
    }

    /// Sets [`Self::payload`].
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets [`Self::headers`].
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets [`Self::max_attempts`].
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }
}

impl Job {
    /// Decodes the payload from JSON.
    ///
    /// # Errors
    /// `Codec` if the payload has another content type, or is not a `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        codec::decode(&self.headers, &self.payload).map_err(|what| {
            let Self { id, queue, .. } = self;
            Error::new(
                ErrorKind::Codec,
                format!("the payload of job {id} in queue {queue} does not decode: {what}"),
            )
        })
    }
}

impl fmt::Debug for NewJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJob")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("key", &self.key)
            .field("on_conflict", &self.on_conflict)
            .field("due", &self.due)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .field("headers", &self.headers)
            .field("max_attempts", &self.max_attempts)
            .finish()
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("key", &self.key)
            .field("due", &self.due)
            .field("created", &self.created)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .field("headers", &self.headers)
            .field("max_attempts", &self.max_attempts)
            .field("attempts", &self.attempts)
            .field("deliveries", &self.deliveries)
            .field("losses", &self.losses)
            .finish()
    }
}

/// Where a live or dead job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// Waiting for its due time.
    Scheduled,
    /// Due, and waiting for a free slot.
    Ready,
    /// Leased to a runner.
    Running,
    /// Kept for an operator to replay or remove.
    Dead,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Dead => "dead",
        })
    }
}

/// A job as it is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// The job.
    pub job: Job,
    /// Where it stands.
    pub state: JobState,
    /// While running: the end of its lease, by the store's clock.
    pub leased_until: Option<Timestamp>,
    /// While dead: why, and since when.
    pub dead: Option<(DeadReason, Timestamp)>,
}

impl JobView {
    /// Decodes the payload of the job from JSON.
    ///
    /// # Errors
    /// `Codec` if the payload has another content type, or is not a `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        self.job.payload()
    }
}

/// Names one job: by id or by key, in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobRef {
    /// The queue that the job lives in.
    pub queue: QueueName,
    /// Which job of that queue.
    pub target: Target,
}

impl JobRef {
    /// The job `target` of `queue`.
    #[must_use]
    pub fn new(queue: QueueName, target: impl Into<Target>) -> Self {
        Self { queue, target: target.into() }
    }
}

/// Which job of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// The job with this id, live or dead.
    Id(JobId),
    /// The live job with this key.
    Key(JobKey),
}

impl From<JobId> for Target {
    fn from(id: JobId) -> Self {
        Self::Id(id)
    }
}

impl From<JobKey> for Target {
    fn from(key: JobKey) -> Self {
        Self::Key(key)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "id {id}"),
            Self::Key(key) => write!(f, "key {:?}", key.as_str()),
        }
    }
}
