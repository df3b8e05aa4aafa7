//! One queue by name.

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
use crate::model::{
    Due, Flow, Headers, IntoDue, JobId, JobKey, JobState, JobView, QueueName, Timestamp,
};

/// One queue by name, for operators and for payloads other than JSON. Cheap to clone.
///
/// Every method except [`browse`](Self::browse) also covers stores being drained, where
/// [`schedule`](Self::schedule) may replace a job with the same key.
///
/// # Errors
/// Calls, and the `.await` of a [`Bulk`] or [`Browse`], return:
/// - `InvalidInput`: a key, due time, limit or edge is invalid, before anything changes;
/// - `Unsupported`: a store lacks the capability; see [`Capabilities`](crate::Capabilities);
/// - `Unavailable`: a store cannot be reached;
/// - `OutcomeUnknown`: the connection was lost during a change. Of many jobs, some may be changed;
/// - `Closed` after [`Dq::close`](crate::Dq::close).
#[derive(Debug, Clone)]
pub struct QueueHandle {
    client: Arc<ClientShared>,
    queue: QueueName,
}

impl QueueHandle {
    pub(super) fn new(client: Arc<ClientShared>, queue: QueueName) -> Self {
        Self { client, queue }
    }

    /// Returns the queue name.
    pub fn name(&self) -> &QueueName {
        &self.queue
    }

    /// Schedules a job with an encoded payload and its content type.
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule(&self, payload: impl Into<Bytes>, content_type: &str) -> Schedule {
        Schedule::new(&self.client, Ok(self.queue.clone()), |headers| {
            headers.insert(Headers::CONTENT_TYPE, content_type);
            Ok(payload.into())
        })
    }

    /// Cancels a job by key or id.
    pub async fn cancel(&self, target: impl IntoTarget) -> Result<Cancelled> {
        self.client.stores.cancel(job_ref(&self.queue, target)?).await
    }

    /// Changes a job's due time, by key or id; a `Duration` counts from now.
    pub async fn reschedule(
        &self,
        target: impl IntoTarget,
        due: impl IntoDue,
    ) -> Result<Rescheduled> {
        let change = Reschedule { job: job_ref(&self.queue, target)?, due: due.into() };
        self.client.stores.reschedule(change).await
    }

    /// Cancels many jobs by key or id, in calls of up to 1,000; results keep the order.
    ///
    /// **Cancellation safety:** if you drop the future, no further call begins.
    pub async fn cancel_many<T: IntoTarget>(
        &self,
        targets: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Cancelled>> {
        let jobs = targets.into_iter().map(|target| job_ref(&self.queue, target));
        self.client.stores.cancel_many(jobs.collect::<Result<_>>()?).await
    }

    /// Cancels matching scheduled and ready jobs.
    pub fn cancel_where(&self, filter: Filter) -> Bulk<'static> {
        self.bulk(Change::Cancel, filter)
    }

    /// Reschedules many jobs by key or id, in calls of up to 1,000; results keep the order.
    ///
    /// **Cancellation safety:** if you drop the future, no further call begins.
    pub async fn reschedule_many<T: IntoTarget, D: IntoDue>(
        &self,
        moves: impl IntoIterator<Item = (T, D)>,
    ) -> Result<Vec<Rescheduled>> {
        let moves = moves.into_iter().map(|(target, due)| {
            Ok(Reschedule { job: job_ref(&self.queue, target)?, due: due.into() })
        });
        self.client.stores.reschedule_many(moves.collect::<Result<_>>()?).await
    }

    /// Gives matching scheduled and ready jobs the same due time.
    ///
    /// A `Duration` counts from the start of the call.
    pub fn reschedule_where(&self, filter: Filter, due: impl IntoDue) -> Bulk<'static> {
        self.bulk(Change::Reschedule(due.into()), filter)
    }

    /// Returns a job by key or id. [`last_with_key`](Self::last_with_key) finds dead and ended jobs
    /// by key.
    pub async fn get(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.client.stores.get(&job_ref(&self.queue, target)?).await
    }

    /// Returns the dead or ended job that had this key last.
    ///
    /// It is too slow for request handlers: no store indexes these keys, so up to 5,000 of the
    /// latest dead and ended jobs each are compared.
    pub async fn last_with_key(&self, key: impl AsRef<str>) -> Result<Option<JobView>> {
        browse::last_with_key(&self.client, &self.queue, &JobKey::new(key.as_ref())?).await
    }

    /// Returns the queue's job counts.
    pub async fn stats(&self) -> Result<QueueStats> {
        single(self.client.stores.stats(std::slice::from_ref(&self.queue)).await?)
    }

    /// Lists the main store's jobs in one state; `.await` returns a page.
    ///
    /// Scheduled and ready jobs are sorted by due time, running jobs by lease expiry, dead jobs by
    /// time of death, and ended jobs by time of end. [`Order`](crate::Order) is the direction.
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
    pub fn browse(&self, state: JobState) -> Browse {
        Browse::new(&self.client, &self.queue, state)
    }

    /// Counts matching jobs in these states.
    ///
    /// It stops after comparing `max_compared` jobs; [`Count::complete`] is then false.
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
    pub async fn count(
        &self,
        states: &[JobState],
        filter: &Filter,
        max_compared: u64,
    ) -> Result<Count> {
        browse::count(&self.client, &self.queue, states, filter, max_compared).await
    }

    /// Counts scheduled and ready jobs by due time.
    ///
    /// Returns one count per pair of neighbouring `edges`, including the first edge and excluding
    /// the second.
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
    pub async fn forecast(&self, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.client.stores.forecast(&self.queue, edges).await
    }

    /// Makes dead jobs due now, with attempts and losses zero; returns how many.
    ///
    /// A job stays dead if a live job has its key.
    pub async fn replay(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Replay { queue: &self.queue, jobs, due: Due::NOW }).await
    }

    /// [Replays](Self::replay) all jobs that are dead now.
    pub fn replay_all(&self) -> Bulk<'static> {
        self.replay_where(Filter::new())
    }

    /// [Replays](Self::replay) matching jobs that are dead now.
    pub fn replay_where(&self, filter: Filter) -> Bulk<'static> {
        self.bulk(Change::Replay, filter)
    }

    /// Removes dead jobs; returns how many.
    pub async fn remove(&self, jobs: &[JobId]) -> Result<u64> {
        self.operate(Operation::Remove { queue: &self.queue, jobs }).await
    }

    /// [Removes](Self::remove) all jobs that are dead now.
    pub fn remove_all(&self) -> Bulk<'static> {
        self.remove_where(Filter::new())
    }

    /// [Removes](Self::remove) matching jobs that are dead now.
    pub fn remove_where(&self, filter: Filter) -> Bulk<'static> {
        self.bulk(Change::Remove, filter)
    }

    /// Pauses the queue in every process until you resume it; running jobs finish.
    ///
    /// Returns `false` if it is already paused.
    pub async fn pause(&self) -> Result<bool> {
        Ok(self.operate(Operation::Pause { queue: &self.queue }).await? > 0)
    }

    /// Resumes a paused queue, and opens one that a handler has throttled. Returns `false` if it
    /// was neither.
    pub async fn resume(&self) -> Result<bool> {
        Ok(self.operate(Operation::Resume { queue: &self.queue }).await? > 0)
    }

    /// Sets limits in place of all that runners declare, until you [remove](Self::remove_override)
    /// them: one that `flow` leaves out is unlimited. Returns `false` if they are set already.
    ///
    /// # Errors
    /// `InvalidInput` if a limit is 0.
    pub async fn override_limits(&self, flow: Flow) -> Result<bool> {
        let operation = Operation::OverrideFlow { queue: &self.queue, flow: Some(flow) };
        Ok(self.operate(operation).await? > 0)
    }

    /// Lets the declared limits count again. Returns `false` if they count already.
    pub async fn remove_override(&self) -> Result<bool> {
        let operation = Operation::OverrideFlow { queue: &self.queue, flow: None };
        Ok(self.operate(operation).await? > 0)
    }

    /// Deletes scheduled, ready and dead jobs in steps; `.await` returns how many.
    ///
    /// Running jobs finish.
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
