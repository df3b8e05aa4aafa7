//! Schedules jobs with a queue and payload known only at run time.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Due, Error, ErrorKind, Headers, JobId, OnConflict, OnRunning, QueueName, Schedule, Scheduled,
    Timestamp,
};
use serde::{Deserialize, Serialize};
use sha1_smol::Sha1;

use crate::actor::Role;
use crate::error::Result;
use crate::input::parse_duration;
use crate::ops::Session;
use crate::text;

/// How long an idempotency key outlives its job by default.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// The most jobs of one call.
const MAX_JOBS: usize = 1_000;

/// The longest idempotency key in bytes.
const MAX_IDEMPOTENCY_KEY: usize = 255;

/// A job to schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleRequest {
    /// The encoded payload.
    pub payload: Bytes,
    /// The payload's MIME type.
    pub content_type: String,
    /// The due time.
    pub due: Due,
    /// The key.
    pub key: Option<String>,
    /// The group.
    pub group: Option<String>,
    /// Applies if a waiting job has the key.
    pub on_conflict: OnConflict,
    /// Applies if a running job has the key.
    pub on_running: OnRunning,
    /// Further headers; not `content-type`.
    pub headers: BTreeMap<String, String>,
    /// Attempt limit; `None` for the queue's setting.
    pub max_attempts: Option<u32>,
    /// Your name for the request. Repeating it schedules only one job, until `remember` after that
    /// job ends.
    pub idempotency_key: Option<String>,
    /// How long the job id is remembered after the job ends, such as `1d`. By default one day with
    /// an idempotency key, otherwise not at all.
    pub remember: Option<String>,
}

impl ScheduleRequest {
    /// Creates a request for a job with a JSON payload, due now.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            content_type: "application/json".to_owned(),
            due: Due::NOW,
            key: None,
            group: None,
            on_conflict: OnConflict::default(),
            on_running: OnRunning::default(),
            headers: BTreeMap::new(),
            max_attempts: None,
            idempotency_key: None,
            remember: None,
        }
    }
}

/// The result of scheduling a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScheduleResult {
    /// The job is stored, by this request or an earlier one with the same idempotency key.
    Created,
    /// The job is stored in place of the one that had its key.
    Replaced,
    /// The job is not stored: another job has its key.
    Kept,
    /// The job is not stored: a running job has its key.
    AlreadyRunning,
    /// An earlier request with the same idempotency key stored the job, and it has ended.
    Ended,
}

/// The job that a request led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ScheduledJob {
    /// The result.
    pub result: ScheduleResult,
    /// The id of the new job, the job with the key, or the ended job.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// The due time.
    #[serde(with = "text")]
    pub due: Timestamp,
}

impl ScheduledJob {
    /// Returns whether the result is `Created` or `Replaced`.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        matches!(self.result, ScheduleResult::Created | ScheduleResult::Replaced)
    }
}

impl From<Scheduled> for ScheduledJob {
    fn from(scheduled: Scheduled) -> Self {
        let result = match scheduled {
            Scheduled::Created(_) => ScheduleResult::Created,
            Scheduled::Replaced(_) => ScheduleResult::Replaced,
            Scheduled::AlreadyRunning(_) => ScheduleResult::AlreadyRunning,
            Scheduled::Ended(_) => ScheduleResult::Ended,
            _ => ScheduleResult::Kept,
        };
        Self { result, id: scheduled.id(), due: scheduled.due() }
    }
}

impl Session {
    /// Schedules a job. Needs the role operator.
    ///
    /// # Errors
    /// `InvalidInput`; `Unsupported` if the store lacks a feature, such as the history for an
    /// idempotency key; `Forbidden`, `Unavailable`, `Full`.
    pub async fn schedule(
        &self,
        queue: &QueueName,
        request: ScheduleRequest,
    ) -> Result<ScheduledJob> {
        let mut scheduled = self.schedule_many(queue, vec![request]).await?;
        scheduled.pop().ok_or_else(|| {
            Error::new(ErrorKind::Internal, "the backend returned no result")
                .remedy("report it to the backend's authors")
                .into()
        })
    }

    /// Schedules up to 1,000 jobs in one call. Results follow the order of the jobs. Needs the role
    /// operator.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule). One invalid job prevents all; an error of the store may
    /// leave some stored.
    pub async fn schedule_many(
        &self,
        queue: &QueueName,
        requests: Vec<ScheduleRequest>,
    ) -> Result<Vec<ScheduledJob>> {
        let target = match &requests[..] {
            [ScheduleRequest { key: Some(key), .. }] => Some(format!("key:{key}")),
            _ => None,
        };
        let changed = |jobs: &Vec<ScheduledJob>| {
            jobs.iter().map(|job| u64::from(job.is_stored())).sum::<u64>()
        };
        let schedule = async {
            self.may_change(queue, Role::Operator)?;
            if requests.len() > MAX_JOBS {
                return Err(Error::invalid(format!("the call has {} jobs", requests.len()))
                    .remedy(format!("schedule at most {MAX_JOBS} in one call"))
                    .into());
            }
            let prepare = |request| self.prepare(queue, request);
            let jobs = requests.into_iter().map(prepare).collect::<Result<Vec<_>>>()?;
            let scheduled = self.ops.dq().schedule_many(jobs).await?;
            Ok(scheduled.into_iter().map(ScheduledJob::from).collect())
        };
        self.audited("schedule", queue, target, changed, schedule).await
    }

    fn prepare(&self, queue: &QueueName, request: ScheduleRequest) -> Result<Schedule> {
        let handle = self.open(queue)?;
        let mut job = handle.schedule(request.payload, &request.content_type);
        job = match request.due {
            Due::At(at) => job.at(at),
            Due::After(delay) => job.after(delay),
        };
        // The store refuses policies without a key.
        job = job.on_conflict(request.on_conflict).on_running(request.on_running);
        if let Some(key) = request.key {
            job = job.key(key);
        }
        if request.headers.contains_key(Headers::CONTENT_TYPE) {
            return Err(Error::invalid("the MIME type of the payload is among its headers")
                .remedy("give it as the content type, without the header `content-type`")
                .into());
        }
        for (name, value) in request.headers {
            job = job.header(name, value);
        }
        if let Some(group) = request.group {
            job = job.group(group);
        }
        if let Some(attempts) = request.max_attempts {
            job = job.max_attempts(attempts);
        }
        let remember = request.remember.as_deref().map(parse_duration).transpose()?;
        if let Some(key) = &request.idempotency_key {
            job = job.id(idempotent_id(queue, key)?).remember(remember.unwrap_or(REMEMBERED));
        } else if let Some(remember) = remember {
            job = job.remember(remember);
        }
        Ok(job)
    }
}

/// A UUID version 5 of queue and key, so that processes agree without coordination.
fn idempotent_id(queue: &QueueName, key: &str) -> Result<JobId> {
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY {
        return Err(Error::invalid(format!("the idempotency key has {} bytes", key.len()))
            .remedy(format!("choose one of 1 to {MAX_IDEMPOTENCY_KEY} bytes"))
            .into());
    }
    // Those of a header's value.
    if !key.bytes().all(|byte| matches!(byte, b' '..=b'~')) || key.trim() != key {
        return Err(Error::invalid(format!("the idempotency key is {key:?}"))
            .remedy("choose visible ASCII characters, with spaces only between them")
            .into());
    }
    let mut hash = Sha1::new();
    // Unambiguous, because a queue name contains no NUL.
    for part in ["dq idempotency key", queue.as_str(), key] {
        hash.update(part.as_bytes());
        hash.update(b"\0");
    }
    let digest = hash.digest().bytes();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    id[6] = id[6] & 0x0f | 0x50;
    id[8] = id[8] & 0x3f | 0x80;
    Ok(JobId::from_bytes(id))
}
