//! One queue by name: what operators need, and payloads that are bytes. Operations reach drained
//! stores too.

use bytes::Bytes;

use super::{Dq, IntoTarget, Schedule, job_ref, single};
use crate::backend::{
    Backend, BrowseParams, Cancelled, Cursor, Operation, Page, QueueStats, Reschedule, Rescheduled,
};
use crate::error::Result;
use crate::model::{Due, Headers, JobId, JobState, JobView, QueueName};

/// One queue by name.
#[derive(Debug, Clone)]
pub struct QueueHandle {
    dq: Dq,
    queue: QueueName,
}

impl QueueHandle {
    pub(super) fn new(dq: Dq, queue: QueueName) -> Self {
        Self { dq, queue }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.queue
    }

    /// Schedules bytes as they are, with their content type.
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule(&self, payload: impl Into<Bytes>, content_type: &str) -> Schedule {
        Schedule::new(&self.dq, Ok(self.queue.clone()), |headers| {
            headers.insert(Headers::CONTENT_TYPE, content_type);
            Ok(payload.into())
        })
    }

    /// Takes a job back, from the store or one that is drained.
    ///
    /// # Errors
    /// `InvalidInput` for a key that no job can have; otherwise what the store says.
    pub async fn cancel(&self, target: impl IntoTarget) -> Result<Cancelled> {
        self.dq.stores().cancel(job_ref(&self.queue, target)?).await
    }

    /// Moves a job to another time, in the store or one that is drained; a `Duration` counts from now.
    ///
    /// # Errors
    /// As [`Self::cancel`], and `InvalidInput` for a time that no job can have.
    pub async fn reschedule(
        &self,
        target: impl IntoTarget,
        due: impl Into<Due>,
    ) -> Result<Rescheduled> {
        let wish = Reschedule { job: job_ref(&self.queue, target)?, due: due.into() };
        self.dq.stores().reschedule(wish).await
    }

    /// Looks at a job in the store or one that is drained; at a dead one only by id.
    ///
    /// # Errors
    /// As [`Self::cancel`].
    pub async fn get(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.dq.stores().get(&job_ref(&self.queue, target)?).await
    }

    /// The queue's counts; those of drained stores are added.
    ///
    /// # Errors
    /// What the store says.
    pub async fn stats(&self) -> Result<QueueStats> {
        single(self.dq.stores().stats(std::slice::from_ref(&self.queue)).await?)
    }

    /// Lists the jobs of one state in the store (not in drained ones), a page at a time: `limit` of
    /// 1 to 1,000 jobs after the cursor that the page before returned.
    ///
    /// # Errors
    /// `InvalidInput` for a limit out of range; otherwise what the store says.
    pub async fn browse(
        &self,
        state: JobState,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page> {
        let params = BrowseParams { queue: &self.queue, state, after, limit };
        self.dq.backend().browse(params).await
    }

    /// Makes dead jobs due again, with all their attempts before them; answers how many. A job
    /// whose key another live job has stays dead.
    ///
    /// # Errors
    /// What the store says.
    pub async fn replay(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Replay { queue: &self.queue, jobs: Some(jobs), due: Due::NOW })
            .await
    }

    /// [`Self::replay`] for every dead job of the queue.
    ///
    /// # Errors
    /// What the store says.
    pub async fn replay_all(&self) -> Result<u64> {
        self.operate(Operation::Replay { queue: &self.queue, jobs: None, due: Due::NOW }).await
    }

    /// Removes dead jobs for good; answers how many.
    ///
    /// # Errors
    /// What the store says.
    pub async fn remove(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Remove { queue: &self.queue, jobs: Some(jobs) }).await
    }

    /// [`Self::remove`] for every dead job of the queue.
    ///
    /// # Errors
    /// What the store says.
    pub async fn remove_all(&self) -> Result<u64> {
        self.operate(Operation::Remove { queue: &self.queue, jobs: None }).await
    }

    /// Stops the queue in every process until it is resumed; running jobs finish. `false` if it
    /// was paused before.
    ///
    /// # Errors
    /// What the store says.
    pub async fn pause(&self) -> Result<bool> {
        Ok(self.operate(Operation::Pause { queue: &self.queue }).await? > 0)
    }

    /// Undoes a pause. `false` if there was none.
    ///
    /// # Errors
    /// What the store says.
    pub async fn resume(&self) -> Result<bool> {
        Ok(self.operate(Operation::Resume { queue: &self.queue }).await? > 0)
    }

    /// Removes every job of this queue that is not running; answers how many.
    ///
    /// # Errors
    /// What the store says.
    pub async fn purge(&self) -> Result<u64> {
        self.operate(Operation::Purge { queue: &self.queue }).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        self.dq.stores().operate(operation).await
    }
}
