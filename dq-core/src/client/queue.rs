//! One queue by name: operations, and payloads that are bytes.
//!
//! All calls but `browse` also act on the stores that are being drained; `schedule` stores nothing
//! there, but a job with a key may replace one there, or be refused because of it.

use std::sync::Arc;

use bytes::Bytes;

use super::browse::{self, Browse, Count};
use super::bulk::{Bulk, Change};
use super::filter::Filter;
use super::schedule::Schedule;
use super::shared::ClientShared;
use super::stores::single;
use super::target::{IntoTarget, job_ref};
use crate::backend::{Cancelled, Operation, QueueStats, Reschedule, Rescheduled};
use crate::error::Result;
use crate::model::{Due, Headers, IntoDue, JobId, JobKey, JobState, JobView, QueueName, Timestamp};

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

    /// Cancels many jobs by key or id, in calls of up to 1,000 jobs. The results are in the order of
    /// the jobs.
    ///
    /// **Cancellation safety:** if the future is dropped, no further call begins.
    ///
    /// # Errors
    /// As [`Self::cancel`]; if a key is invalid, nothing is cancelled. After another error, some of
    /// the jobs may be cancelled.
    pub async fn cancel_many<T: IntoTarget>(
        &self,
        targets: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Cancelled>> {
        let jobs = targets.into_iter().map(|target| job_ref(&self.queue, target));
        self.client.stores.cancel_many(jobs.collect::<Result<_>>()?).await
    }

    /// Cancels the scheduled and ready jobs that match, in the stores being drained too.
    ///
    /// # Errors
    /// Of the `.await`: as [`Self::cancel`], and `Unsupported` if a store cannot list jobs.
    pub fn cancel_where(&self, filter: Filter) -> Bulk<'static> {
        self.bulk(Change::Cancel, filter)
    }

    /// Changes the due times of many jobs, by key or id, in calls of up to 1,000 jobs. The results
    /// are in the order of the jobs.
    ///
    /// **Cancellation safety:** if the future is dropped, no further call begins.
    ///
    /// # Errors
    /// As [`Self::reschedule`]; if a key is invalid, nothing is changed. After another error, some
    /// of the jobs may be changed.
    pub async fn reschedule_many<T: IntoTarget, D: IntoDue>(
        &self,
        moves: impl IntoIterator<Item = (T, D)>,
    ) -> Result<Vec<Rescheduled>> {
        let moves = moves.into_iter().map(|(target, due)| {
            Ok(Reschedule { job: job_ref(&self.queue, target)?, due: due.into() })
        });
        self.client.stores.reschedule_many(moves.collect::<Result<_>>()?).await
    }

    /// Gives the scheduled and ready jobs that match the same due time, in the stores being drained
    /// too. A `Duration` counts from the beginning of the call.
    ///
    /// # Errors
    /// Of the `.await`: as [`Self::reschedule`], and `Unsupported` if a store cannot list jobs.
    pub fn reschedule_where(&self, filter: Filter, due: impl IntoDue) -> Bulk<'static> {
        self.bulk(Change::Reschedule(due.into()), filter)
    }

    /// Returns a job by key or id; a dead or ended job by id only, or by
    /// [`last_with_key`](Self::last_with_key).
    ///
    /// # Errors
    /// `InvalidInput` if the key is invalid, `Unsupported` if the store cannot read single jobs,
    /// `Unavailable` if it cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn get(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.client.stores.get(&job_ref(&self.queue, target)?).await
    }

    /// The dead or ended job that had this key last; for the live one, see [`get`](Self::get). Jobs in
    /// stores being drained are included.
    ///
    /// No store has an index of such keys: in each store this compares up to the 5,000 jobs that died last
    /// and the 5,000 that ended last, as far as the store remembers them. So it is for people who look,
    /// not for each request of a service.
    ///
    /// # Errors
    /// `InvalidInput` if the key is invalid, `Unsupported` if a store cannot list jobs, `Unavailable`
    /// if it cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn last_with_key(&self, key: impl AsRef<str>) -> Result<Option<JobView>> {
        browse::last_with_key(&self.client, &self.queue, &JobKey::new(key.as_ref())?).await
    }

    /// Job counts of the queue; jobs in stores being drained are included.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn stats(&self) -> Result<QueueStats> {
        single(self.client.stores.stats(std::slice::from_ref(&self.queue)).await?)
    }

    /// Lists jobs in one state; `.await` the result for a page. Jobs in stores being drained are not
    /// included.
    ///
    /// Scheduled and ready jobs are in due order, running ones by the end of their lease, dead ones
    /// by their time of death, ended ones by the time of their end.
    ///
    /// ```
    /// # use dq_core::{Dq, Filter, JobState, Order};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// # let queue = dq.queue("ORDER_TIMEOUT")?;
    /// let page = queue.browse(JobState::Dead).limit(20).order(Order::Descending).await?;
    /// for view in &page.jobs {
    ///     println!("{} {:?}", view.job.id, view.dead);
    /// }
    /// // The dead jobs that failed for one reason, page by page.
    /// let mut next = None;
    /// loop {
    ///     let filter = Filter::new().error("connection refused");
    ///     let page = queue.browse(JobState::Dead).filter(filter).after(next).await?;
    ///     println!("{} jobs", page.jobs.len());
    ///     next = page.next;
    ///     if next.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of the `.await`: `InvalidInput` if the limit is out of range, `Unsupported` if the store
    /// cannot list jobs, `Unavailable` if it cannot be reached, `Closed` after
    /// [`Dq::close`](crate::Dq::close).
    pub fn browse(&self, state: JobState) -> Browse {
        Browse::new(&self.client, &self.queue, state)
    }

    /// Counts the jobs in these states that match a filter. Like a change of many jobs, it includes
    /// the stores being drained. It compares job by job, and stops when `max_compared` jobs were
    /// compared: [`Count::complete`] is false then.
    ///
    /// ```
    /// # use dq_core::{Dq, Filter, JobState};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// # let queue = dq.queue("ORDER_TIMEOUT")?;
    /// let filter = Filter::new().error("connection refused");
    /// let count = queue.count(&[JobState::Dead], &filter, 200_000).await?;
    /// assert!(count.complete);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` if a store cannot list jobs, `Unavailable` if it cannot be reached, `Closed`
    /// after [`Dq::close`](crate::Dq::close).
    pub async fn count(
        &self,
        states: &[JobState],
        filter: &Filter,
        max_compared: u64,
    ) -> Result<Count> {
        browse::count(&self.client, &self.queue, states, filter, max_compared).await
    }

    /// Counts the scheduled and ready jobs by due time: one number for each pair of neighbouring
    /// `edges`, of the jobs that are due from the first until before the second. Jobs in stores
    /// being drained are included.
    ///
    /// ```
    /// # use dq_core::{Dq, DurationExt, Timestamp};
    /// # use std::time::SystemTime;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// # let queue = dq.queue("ORDER_TIMEOUT")?;
    /// let now = Timestamp::from(SystemTime::now());
    /// let edges: Vec<_> = (0..=24).map(|hour| now + hour.hours()).collect();
    /// let jobs_by_hour = queue.forecast(&edges).await?;
    /// assert_eq!(jobs_by_hour.len(), 24);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the edges do not ascend, `Unsupported` if a store cannot count jobs by due
    /// time, `Unavailable` if it cannot be reached, `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn forecast(&self, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.client.stores.forecast(&self.queue, edges).await
    }

    /// Makes dead jobs due now, with attempts and losses set to zero; returns how many. A job stays
    /// dead if a live job has its key.
    ///
    /// # Errors
    /// `Unsupported` if the store does not keep dead jobs, `Unavailable` if it cannot be reached,
    /// `Closed` after [`Dq::close`](crate::Dq::close).
    pub async fn replay(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Replay { queue: &self.queue, jobs, due: Due::NOW }).await
    }

    /// [`replay`](Self::replay) for every job that is dead now.
    ///
    /// # Errors
    /// Of the `.await`: as [`Self::replay`], and `Unsupported` if a store cannot list jobs.
    pub fn replay_all(&self) -> Bulk<'static> {
        self.replay_where(Filter::new())
    }

    /// [`replay`](Self::replay) for every job that is dead now and matches.
    ///
    /// # Errors
    /// As [`Self::replay_all`].
    pub fn replay_where(&self, filter: Filter) -> Bulk<'static> {
        self.bulk(Change::Replay, filter)
    }

    /// Deletes dead jobs; returns how many.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub async fn remove(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Remove { queue: &self.queue, jobs }).await
    }

    /// [`remove`](Self::remove) for every job that is dead now.
    ///
    /// # Errors
    /// As [`Self::replay_all`].
    pub fn remove_all(&self) -> Bulk<'static> {
        self.remove_where(Filter::new())
    }

    /// [`remove`](Self::remove) for every job that is dead now and matches.
    ///
    /// # Errors
    /// As [`Self::replay_all`].
    pub fn remove_where(&self, filter: Filter) -> Bulk<'static> {
        self.bulk(Change::Remove, filter)
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

    /// Deletes every job of this queue that is not running, in steps; `.await` returns how many.
    ///
    /// # Errors
    /// Of the `.await`: `Unavailable` if a store cannot be reached, `Closed` after
    /// [`Dq::close`](crate::Dq::close).
    pub fn purge(&self) -> Bulk<'static> {
        self.bulk(Change::Purge, Filter::new())
    }

    fn bulk(&self, change: Change, filter: Filter) -> Bulk<'static> {
        Bulk::new(&self.client, &self.queue, change, filter)
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        self.client.stores.operate(operation).await
    }
}
