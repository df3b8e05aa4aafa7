//! The client.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::queue::QueueHandle;
use super::runners::RegisteredRunner;
use super::schedule::{Schedule, ScheduleMany};
use super::shared::ClientShared;
use super::target::IntoTarget;
use crate::backend::{Backend, Cancelled, Checked, Finding, QueueStats, Rescheduled, Scheduled};
use crate::error::Result;
use crate::model::{
    Headers, IntoDue, JobId, JobView, Limits, NewJob, Queue, QueueName, Timestamp, codec,
};

/// The client of a delayed job store. Cheap to clone; clones share the connection.
///
/// # Errors
/// Every call to a store can return `Unavailable` if a store cannot be reached, and `Closed` after
/// [`close`](Self::close). The methods list their other error kinds.
#[derive(Debug, Clone)]
pub struct Dq {
    shared: Arc<ClientShared>,
}

impl Dq {
    pub(super) fn new(shared: ClientShared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Schedules a job. Set due time, key and other options on the result, then `.await` it.
    ///
    /// Without a due time the job is due at once, or after its escalation's first delay. `Q` names
    /// a `#[delay_handler]` function or a [`queue!`](crate::queue).
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule<Q: Queue>(&self, payload: Q::Payload) -> Schedule
    where
        Q::Payload: serde::Serialize,
    {
        let schedule = Schedule::new(&self.shared, Q::queue(), |headers| {
            if let Some(version) = Q::VERSION {
                headers.insert(Headers::SCHEMA_VERSION, version.to_string());
            }
            codec::encode(&payload)
        });
        match Q::STEPS {
            [first, ..] => schedule.after(*first),
            [] => schedule,
        }
    }

    /// Schedules many jobs in one call, for any queues.
    ///
    /// `dq.schedule_many(orders.map(|order| dq.schedule::<order_timeout>(order).after(delay)))`
    ///
    /// Results follow the job order. One invalid job prevents all; a store error may leave some
    /// stored.
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule_many(&self, jobs: impl IntoIterator<Item = Schedule>) -> ScheduleMany {
        ScheduleMany::new(&self.shared, jobs)
    }

    /// Schedules jobs that are in the form that stores take, such as another system's.
    ///
    /// # Errors
    /// As [`schedule_many`](Self::schedule_many).
    pub async fn schedule_jobs(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.shared.stores.schedule(jobs).await
    }

    /// Generates a job id, for [`Schedule::id`].
    pub fn new_id(&self) -> JobId {
        self.shared.new_id()
    }

    /// Cancels a job by key or id.
    pub async fn cancel<Q: Queue>(&self, target: impl IntoTarget) -> Result<Cancelled> {
        self.queue_of::<Q>()?.cancel(target).await
    }

    /// Changes a job's due time, by key or id; a `Duration` counts from now.
    pub async fn reschedule<Q: Queue>(
        &self,
        target: impl IntoTarget,
        due: impl IntoDue,
    ) -> Result<Rescheduled> {
        self.queue_of::<Q>()?.reschedule(target, due).await
    }

    /// Returns a job by key or id; a dead or ended job by id only.
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
    pub async fn get<Q: Queue>(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.queue_of::<Q>()?.get(target).await
    }

    /// Opens a queue by name, for operators and for payloads other than JSON.
    ///
    /// # Errors
    /// `InvalidInput` if the name is invalid.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<QueueHandle> {
        Ok(QueueHandle::new(Arc::clone(&self.shared), QueueName::new(name)?))
    }

    /// Opens the queue of a handler or a [`queue!`](crate::queue).
    ///
    /// # Errors
    /// `InvalidInput` if the code is not a valid queue name.
    pub fn queue_of<Q: Queue>(&self) -> Result<QueueHandle> {
        self.queue(Q::code())
    }

    /// Returns whether the configuration has `[queues.NAME]` for this queue.
    pub fn is_configured(&self, queue: &QueueName) -> bool {
        self.shared.queues.contains_key(queue)
    }

    /// Returns the queues with `[queues.NAME.forward]` in the configuration, by name.
    pub fn forwarded_queues(&self) -> impl Iterator<Item = &QueueName> {
        let queues = self.shared.queues.iter();
        queues.filter(|(_, settings)| settings.forward.is_some()).map(|(queue, _)| queue)
    }

    /// Returns job counts by queue name, including stores being drained.
    pub async fn stats(&self) -> Result<Vec<QueueStats>> {
        self.shared.stores.stats(&[]).await
    }

    /// Counts a queue's scheduled and ready jobs by due time; see [`QueueHandle::forecast`].
    pub async fn forecast<Q: Queue>(&self, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.queue_of::<Q>()?.forecast(edges).await
    }

    /// Returns the runners that serve the main store, by name.
    ///
    /// A runner in [`Runner::run_until`](crate::Runner::run_until) announces itself at start and
    /// every 15 s; [`Runner::run_due`](crate::Runner::run_due) does not. A runner that disappears
    /// stays listed for at most a minute.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = dq_core::Dq::connect("memory:").await?;
    /// for runner in dq.runners().await? {
    ///     match runner.info {
    ///         Ok(info) => println!("{} on {}: {} jobs", runner.name, info.host, info.running),
    ///         Err(unreadable) => println!("{}: {}", runner.name, unreadable.error),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` if the store does not keep announcements.
    pub async fn runners(&self) -> Result<Vec<RegisteredRunner>> {
        let announced = self.backend().runners().await?;
        Ok(announced.into_iter().map(RegisteredRunner::from).collect())
    }

    /// Checks the main store's versions, settings and clock skew, but not stores being drained.
    pub async fn check(&self) -> Vec<Finding> {
        self.backend().check().await
    }

    /// Finishes pending calls and closes all stores. Stop all runners first.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, such as for its last writes. The others still
    /// close.
    pub async fn close(&self) -> Result<()> {
        self.shared.stores.close().await
    }

    /// Returns the main store, behind a layer that checks limits and capabilities.
    ///
    /// Unlike most client calls, its calls exclude stores being drained.
    pub fn backend(&self) -> &Arc<Checked> {
        &self.shared.stores.main
    }

    /// Returns the main store if its type is `B`, for that store's own features.
    pub fn backend_as<B: Backend>(&self) -> Option<&B> {
        let mut backend: &dyn Backend = &**self.backend();
        loop {
            let any: &dyn Any = backend;
            if let Some(found) = any.downcast_ref() {
                return Some(found);
            }
            backend = backend.wrapped()?;
        }
    }

    /// Returns the limits on job size and due time.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    pub(crate) async fn sleep(&self, delay: Duration) {
        self.shared.environment.clock.sleep(delay).await;
    }

    pub(crate) fn shared(&self) -> &Arc<ClientShared> {
        &self.shared
    }
}
