//! The client: schedules jobs, changes them, and opens queues.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::queue::QueueHandle;
use super::runners::RegisteredRunner;
use super::schedule::{Schedule, ScheduleMany};
use super::shared::ClientShared;
use super::target::IntoTarget;
use crate::backend::{Backend, Cancelled, Checked, Finding, QueueStats, Rescheduled};
use crate::error::Result;
use crate::model::{Headers, IntoDue, JobId, JobView, Limits, Queue, QueueName, Timestamp, codec};

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
    /// it. Without a due time the job is due at once, or after the first delay of the queue's
    /// escalation if it has one.
    ///
    /// `Q` is the name of a `#[delay_handler]` function or of a [`queue!`](crate::queue).
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

    /// Whether the configuration has settings of this queue, `[queues.NAME]`.
    #[must_use]
    pub fn is_configured(&self, queue: &QueueName) -> bool {
        self.shared.queues.contains_key(queue)
    }

    /// The queues that have a forward in the configuration, `[queues.NAME.forward]`, by name.
    pub fn forwarded_queues(&self) -> impl Iterator<Item = &QueueName> {
        let queues = self.shared.queues.iter();
        queues.filter(|(_, settings)| settings.forward.is_some()).map(|(queue, _)| queue)
    }

    /// Job counts of all queues, ordered by name; jobs in stores being drained are included.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, `Closed` after [`close`](Self::close).
    pub async fn stats(&self) -> Result<Vec<QueueStats>> {
        self.shared.stores.stats(&[]).await
    }

    /// Counts the scheduled and ready jobs of a queue by due time; see
    /// [`QueueHandle::forecast`].
    ///
    /// # Errors
    /// As [`QueueHandle::forecast`].
    pub async fn forecast<Q: Queue>(&self, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.queue_of::<Q>()?.forecast(edges).await
    }

    /// The runners that serve the main store, ordered by name. Each announces itself when it starts
    /// and every 15 s, and is listed for at most a minute after it has disappeared.
    ///
    /// [`Runner::run_until`](crate::Runner::run_until) announces the runner,
    /// [`Runner::run_due`](crate::Runner::run_due) does not.
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
    /// `Unsupported` if the store does not keep announcements, `Unavailable` if it cannot be
    /// reached, `Closed` after [`close`](Self::close).
    pub async fn runners(&self) -> Result<Vec<RegisteredRunner>> {
        let announced = self.backend().runners().await?;
        Ok(announced.into_iter().map(RegisteredRunner::from).collect())
    }

    /// Problems of the main store that an operator should know: versions, settings, clock skew.
    /// Stores being drained are not checked.
    pub async fn check(&self) -> Vec<Finding> {
        self.backend().check().await
    }

    /// Finishes pending calls and closes all stores. Stop all runners first.
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, such as for its last writes. The other stores are
    /// closed all the same.
    pub async fn close(&self) -> Result<()> {
        self.shared.stores.close().await
    }

    /// The main store, behind a layer that checks limits and capabilities. Its calls do not include
    /// stores being drained, unlike most of this client.
    #[must_use]
    pub fn backend(&self) -> &Arc<Checked> {
        &self.shared.stores.main
    }

    /// The main store as its own type, for what only that store offers.
    ///
    /// `None` if it is another type of store.
    #[must_use]
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

    /// The limits of jobs: their sizes, and how far ahead they may be due.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Waits on the client's clock.
    pub(crate) async fn sleep(&self, delay: Duration) {
        self.shared.environment.clock.sleep(delay).await;
    }

    pub(crate) fn shared(&self) -> &Arc<ClientShared> {
        &self.shared
    }
}
