//! One job or many, on their way into the store.

use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::{Dq, single};
use crate::backend::Scheduled;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Due, Headers, JobId, JobKey, NewJob, OnConflict, QueueName, Timestamp};

/// A job that is not scheduled yet; `.await` schedules it.
///
/// What is wrong with a key, time, header or payload is told by the `await`, before anything is
/// stored.
///
/// A call whose outcome is unknown (a connection lost, a commit that failed) is repeated by itself a
/// few times with the same id, which makes that harmless.
///
/// **Cancellation safety:** if the `await` is dropped, the job may or may not have been stored. To
/// repeat it safely, give it an [`id`](Self::id) of your own, or a key.
#[must_use = "nothing is scheduled until this is awaited"]
#[derive(Debug)]
pub struct Schedule {
    dq: Dq,
    job: Result<NewJob>,
}

impl Schedule {
    pub(super) fn new(
        dq: &Dq,
        queue: Result<QueueName>,
        encode: impl FnOnce(&mut Headers) -> Result<Bytes>,
    ) -> Self {
        let shared = dq.shared();
        let job = queue.and_then(|queue| {
            let mut headers = Headers::new();
            let payload = encode(&mut headers)
                .map_err(|error| error.remedy(format!("it is the payload for queue {queue}")))?;
            if let Some(context) = shared.propagator.current(&shared.environment.entropy) {
                headers.insert(Headers::TRACEPARENT, context.to_string());
            }
            Ok(NewJob::new(dq.new_id(), queue, Due::NOW, payload).headers(headers))
        });
        Self { dq: dq.clone(), job: job.map_err(|error| error.operation("schedule")) }
    }

    /// Due this long after the store received it.
    pub fn after(self, delay: Duration) -> Self {
        self.with(|job| job.due = Due::After(delay))
    }

    /// Due at this time: a [`Timestamp`] or a `SystemTime`. The past means at once.
    pub fn at(self, due: impl Into<Timestamp>) -> Self {
        self.with(|job| job.due = Due::At(due.into()))
    }

    /// The caller's own name for the job: at most one live job has it in the queue.
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        if let Ok(job) = &mut self.job {
            match JobKey::new(key) {
                Ok(key) => job.key = Some(key),
                Err(error) => self.job = Err(error.operation("schedule")),
            }
        }
        self
    }

    /// The job's id, instead of a new one: scheduling it again changes nothing while it is in the
    /// store. Ids are made by [`Dq::new_id`].
    pub fn id(self, id: JobId) -> Self {
        self.with(|job| job.id = id)
    }

    /// What to do when a live job has the key; [`OnConflict::Keep`] unless said.
    pub fn on_conflict(self, policy: OnConflict) -> Self {
        self.with(|job| job.on_conflict = policy)
    }

    /// Text beside the payload.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|job| {
            job.headers.insert(name, value);
        })
    }

    /// Attempts of this job, whatever the queue's settings say; 1 means no retry.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|job| job.max_attempts = Some(attempts))
    }

    /// The job as it will be handed to the store.
    ///
    /// # Errors
    /// What is wrong with what was said so far.
    pub fn into_job(self) -> Result<NewJob> {
        let job = self.job?;
        if job.key.is_none() && job.on_conflict != OnConflict::Keep {
            return Err(Error::invalid(format!(
                "a job for queue {} has a conflict policy but no key",
                job.queue
            ))
            .remedy("add `.key(…)`, or leave `.on_conflict(…)` out")
            .operation("schedule"));
        }
        Ok(job)
    }

    fn with(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        if let Ok(job) = &mut self.job {
            change(job);
        }
        self
    }
}

impl IntoFuture for Schedule {
    type Output = Result<Scheduled>;
    type IntoFuture = BoxFuture<'static, Result<Scheduled>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let dq = self.dq.clone();
            single(dq.stores().schedule(vec![self.into_job()?]).await?)
        })
    }
}

/// Many jobs that are not scheduled yet; `.await` schedules them in one call.
#[must_use = "nothing is scheduled until this is awaited"]
#[derive(Debug)]
pub struct ScheduleMany {
    dq: Dq,
    jobs: Result<Vec<NewJob>>,
}

impl ScheduleMany {
    pub(super) fn new(dq: &Dq, jobs: impl IntoIterator<Item = Schedule>) -> Self {
        Self { dq: dq.clone(), jobs: jobs.into_iter().map(Schedule::into_job).collect() }
    }
}

impl IntoFuture for ScheduleMany {
    type Output = Result<Vec<Scheduled>>;
    type IntoFuture = BoxFuture<'static, Result<Vec<Scheduled>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.dq.stores().schedule(self.jobs?).await })
    }
}

/// Encodes a payload as JSON, which needs no content type: it is what is assumed.
pub(super) fn encode<T: Serialize>(payload: &T) -> Result<Bytes> {
    match serde_json::to_vec(payload) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => Err(Error::new(
            ErrorKind::Codec,
            format!("{} does not encode as JSON: {error}", std::any::type_name::<T>()),
        )
        .source(error)),
    }
}
