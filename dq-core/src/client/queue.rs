//! One queue by name: operations, and payloads that are bytes.
//!
//! All calls but `schedule` and `browse` also act on the stores that are being drained.

use std::sync::Arc;

use bytes::Bytes;

use super::schedule::Schedule;
use super::shared::ClientShared;
use super::stores::single;
use super::target::{IntoTarget, job_ref};
use crate::backend::{
    Backend, BrowseParams, Cancelled, Cursor, Operation, Page, QueueStats, Reschedule, Rescheduled,
};
use crate::error::Result;
use crate::model::{Due, Headers, IntoDue, JobId, JobState, JobView, QueueName};

/// One queue by name, for operators and for payloads that are not JSON. Cheap to clone.
#[derive(Debug, Clone)]
pub struct QueueHandle {
    client: Arc<ClientShared>,
    queue: QueueName,
}

impl QueueHandle {
    pub(super) fn new(client: Arc<ClientShared>, queue: QueueName) -> Self {
        Self { client, queue }
    }

    /// The name of the queue.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.queue
    }

    /// Schedules a job whose payload is already encoded, with its content type.
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule(&self, payload: impl Into<Bytes>, content_type: &str) -> Schedule {
        Schedule::new(&self.client, Ok(self.queue.clone()), |headers| {
            headers.insert(Headers::CONTENT_TYPE, content_type);
            Ok(payload.into())
        })
    }

    /// Cancels a job by key or id.
    ///
    /// # Errors
    /// `InvalidInput` if the key is invalid, `Unsupported` if the store cannot cancel jobs,
    /// `Unavailable` if it cannot be reached, `OutcomeUnknown` if the connection was lost during
    /// the call, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn cancel(&self, target: impl IntoTarget) -> Result<Cancelled> {
        self.client.stores.cancel(job_ref(&self.queue, target)?).await
    }

    /// Changes the due time of a job, by key or id; a `Duration` counts from now.
    ///
    /// # Errors
    /// As [`Self::cancel`], with `Unsupported` if the store cannot reschedule jobs and also
    /// `InvalidInput` if the due time is out of range.
    pub async fn reschedule(
        &self,
        target: impl IntoTarget,
        due: impl IntoDue,
    ) -> Result<Rescheduled> {
        let change = Reschedule { job: job_ref(&self.queue, target)?, due: due.into() };
        self.client.stores.reschedule(change).await
    }

    /// Returns a job by key or id; a dead job by id only.
    ///
    /// # Errors
    /// `InvalidInput` if the key is invalid, `Unsupported` if the store cannot read single jobs,
    /// `Unavailable` if it cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn get(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.client.stores.get(&job_ref(&self.queue, target)?).await
    }

    /// Job counts of the queue; jobs in stores being drained are included.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn stats(&self) -> Result<QueueStats> {
        single(self.client.stores.stats(std::slice::from_ref(&self.queue)).await?)
    }

    /// Lists jobs in one state; jobs in stores being drained are not included.
    ///
    /// Scheduled and ready jobs are in due order, running ones by the end of their lease, dead ones
    /// by their time of death.
    ///
    /// Returns a page of up to `limit` jobs, 1 to 1,000. Pass the cursor of a page as `after` to
    /// get the next one.
    ///
    /// # Errors
    /// `InvalidInput` if the limit is out of range, `Unsupported` if the store cannot list jobs,
    /// `Unavailable` if it cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn browse(
        &self,
        state: JobState,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page> {
        let params = BrowseParams { queue: &self.queue, state, after, limit };
        self.client.stores.main.browse(params).await
    }

    /// Makes dead jobs due now, with attempts and losses set to zero; returns how many. A job stays
    /// dead if a live job has its key.
    ///
    /// # Errors
    /// `Unsupported` if the store does not keep dead jobs, `Unavailable` if it cannot be reached,
    /// `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn replay(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Replay { queue: &self.queue, jobs: Some(jobs), due: Due::NOW })
            .await
    }

    /// [`replay`](Self::replay) for every dead job of the queue.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub async fn replay_all(&self) -> Result<u64> {
        self.operate(Operation::Replay { queue: &self.queue, jobs: None, due: Due::NOW }).await
    }

    /// Deletes dead jobs; returns how many.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub async fn remove(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Remove { queue: &self.queue, jobs: Some(jobs) }).await
    }

    /// [`remove`](Self::remove) for every dead job of the queue.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub async fn remove_all(&self) -> Result<u64> {
        self.operate(Operation::Remove { queue: &self.queue, jobs: None }).await
    }

    /// Pauses the queue in every process until it is resumed; running jobs finish. Returns `false`
    /// if it is already paused.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot pause queues, `Unavailable` if it cannot be reached,
    /// `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn pause(&self) -> Result<bool> {
        Ok(self.operate(Operation::Pause { queue: &self.queue }).await? > 0)
    }

    /// Resumes a paused queue. Returns `false` if it is not paused.
    ///
    /// # Errors
    /// As [`Self::pause`].
    pub async fn resume(&self) -> Result<bool> {
        Ok(self.operate(Operation::Resume { queue: &self.queue }).await? > 0)
    }

    /// Deletes every job of this queue that is not running; returns how many.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn purge(&self) -> Result<u64> {
        self.operate(Operation::Purge { queue: &self.queue }).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        self.client.stores.operate(operation).await
    }
}
