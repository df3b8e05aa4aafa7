//! The client: schedules jobs, changes them, and opens queues.

use std::sync::Arc;

use super::queue::QueueHandle;
use super::schedule::{Schedule, ScheduleMany};
use super::shared::ClientShared;
use super::target::IntoTarget;
use crate::backend::{Backend, Cancelled, Checked, Finding, QueueStats, Rescheduled};
use crate::error::Result;
use crate::model::{IntoDue, JobId, JobView, Queue, QueueName, codec};

/// The client of a store of delayed jobs. Cheap to clone; all clones share the connection.
#[derive(Debug, Clone)]
pub struct Dq {
    shared: Arc<ClientShared>,
}

impl Dq {
    pub(super) fn new(shared: ClientShared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Schedules a job. Set the due time, the key and other options on the result, then `.await`
    /// it. Without a due time the job is due at once.
    ///
    /// `Q` is the name of a `#[delay_handler]` function or of a [`queue!`](crate::queue).
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule<Q: Queue>(&self, payload: Q::Payload) -> Schedule
    where
        Q::Payload: serde::Serialize,
    {
        Schedule::new(&self.shared, Q::queue(), |_| codec::encode(&payload))
    }

    /// Schedules many jobs in one call, of any queues:
    ///
    /// `dq.schedule_many(orders.map(|order| dq.schedule::<order_timeout>(order).after(delay)))`
    ///
    /// Results are in the order of the jobs. If a job is invalid, none is stored. A store may write
    /// a long bulk in several transactions; after an error of the store, some of the jobs may be
    /// stored.
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule_many(&self, jobs: impl IntoIterator<Item = Schedule>) -> ScheduleMany {
        ScheduleMany::new(&self.shared, jobs)
    }

    /// Generates a job id, for [`Schedule::id`].
    #[must_use]
    pub fn new_id(&self) -> JobId {
        self.shared.new_id()
    }

    /// Cancels a job by key or id.
    ///
    /// # Errors
    /// `InvalidInput` if the key is invalid, `Unsupported` if the store cannot cancel jobs,
    /// `Unavailable` if it cannot be reached, `OutcomeUnknown` if the connection was lost during
    /// the call, `Closed` after [`close`](Self::close).
    pub async fn cancel<Q: Queue>(&self, target: impl IntoTarget) -> Result<Cancelled> {
        self.queue_of::<Q>()?.cancel(target).await
    }

    /// Changes the due time of a job, by key or id; a `Duration` counts from now.
    ///
    /// # Errors
    /// As [`Self::cancel`], with `Unsupported` if the store cannot reschedule jobs and also
    /// `InvalidInput` if the due time is out of range.
    pub async fn reschedule<Q: Queue>(
        &self,
        target: impl IntoTarget,
        due: impl IntoDue,
    ) -> Result<Rescheduled> {
        self.queue_of::<Q>()?.reschedule(target, due).await
    }

    /// Returns a job by key or id; a dead job by id only.
    ///
    /// ```
    /// # use dq_core::{Dq, DurationExt};
    /// # dq_core::queue!(ORDER_TIMEOUT: u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// dq.schedule::<ORDER_TIMEOUT>(1001).after(15.minutes()).key(17).await?;
    /// let view = dq.get::<ORDER_TIMEOUT>(17).await?.expect("it waits");
    /// assert_eq!(view.payload::<u64>()?, 1001);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the key is invalid, `Unsupported` if the store cannot read single jobs,
    /// `Unavailable` if it cannot be reached, `Closed` after [`close`](Self::close).
    pub async fn get<Q: Queue>(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.queue_of::<Q>()?.get(target).await
    }

    /// Opens a queue by name, for operators and for payloads that are not JSON.
    ///
    /// # Errors
    /// `InvalidInput` if the name is invalid.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<QueueHandle> {
        Ok(QueueHandle::new(Arc::clone(&self.shared), QueueName::new(name)?))
    }

    /// Opens the queue of a handler or a [`queue!`](crate::queue).
    ///
    /// # Errors
    /// `InvalidInput` if its code is not a valid queue name.
    pub fn queue_of<Q: Queue>(&self) -> Result<QueueHandle> {
        self.queue(Q::code())
    }

    /// Job counts of all queues, ordered by name; jobs in stores being drained are included.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, `Closed` after [`close`](Self::close).
    pub async fn stats(&self) -> Result<Vec<QueueStats>> {
        self.shared.stores.stats(&[]).await
    }

    /// Problems of the main store that an operator should know: versions, settings, clock skew.
    /// Stores being drained are not checked.
    pub async fn check(&self) -> Vec<Finding> {
        self.backend().check().await
    }

    /// Finishes pending calls and closes all stores. Stop all runners first.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, such as for its last writes.
    pub async fn close(&self) -> Result<()> {
        for store in self.shared.stores.iter() {
            store.close().await?;
        }
        Ok(())
    }

    /// The main store, behind a layer that checks limits and capabilities. Its calls do not include
    /// stores being drained, unlike those of this client.
    #[must_use]
    pub fn backend(&self) -> &Arc<Checked> {
        &self.shared.stores.main
    }

    pub(crate) fn shared(&self) -> &Arc<ClientShared> {
        &self.shared
    }
}
