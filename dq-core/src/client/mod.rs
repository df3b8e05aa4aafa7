//! What an application calls: schedule, cancel, look, operate; and where its runner comes from.

mod builder;
pub mod import;
mod queue;
mod schedule;
mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

pub use builder::DqBuilder;
pub use import::{ImportReport, ImportSource};
pub use queue::QueueHandle;
pub use schedule::{Schedule, ScheduleMany};
pub(crate) use stores::Stores;

use crate::backend::{Backend, Cancelled, Checked, Finding, QueueStats, Rescheduled, Scheduled};
use crate::config::{Config, Environment, QueueSettings, RunnerSettings, backend_from_url};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Due, JobId, JobKey, JobRef, JobView, Limits, Queue, QueueName, Target};
use crate::sync::lock;
use crate::trace::Propagator;

/// The handle to a store of delayed jobs. Cheap to clone; all clones are one client.
#[derive(Debug, Clone)]
pub struct Dq {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) environment: Environment,
    pub(crate) propagator: Arc<dyn Propagator>,
    pub(crate) limits: Limits,
    pub(crate) defaults: QueueSettings,
    pub(crate) queues: BTreeMap<QueueName, QueueSettings>,
    pub(crate) runner: RunnerSettings,
    /// Names of the runners that live in this process.
    runner_names: Mutex<BTreeSet<String>>,
}

impl Dq {
    /// Opens the store that a URL names, such as `sqlite://jobs.db` or `memory:`.
    ///
    /// # Errors
    /// `Config` if the URL cannot be used; otherwise what the store says.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().backend_config(backend_from_url(url)?).connect().await
    }

    /// Opens the stores that a `dq.toml` names; see [`Config`].
    ///
    /// # Errors
    /// `Config` naming what is wrong in the file; otherwise what the store says.
    pub async fn from_config(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().config(Config::from_path(path)?).connect().await
    }

    /// For everything that differs from the defaults.
    #[must_use]
    pub fn builder() -> DqBuilder {
        DqBuilder::default()
    }

    /// Schedules a job; `.await` the result after saying when, under which key, and so on. Due at
    /// once unless said otherwise.
    ///
    /// `Q` is the name of a `#[delay_handler]` function or of a [`queue!`](crate::queue).
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule<Q: Queue>(&self, payload: Q::Payload) -> Schedule
    where
        Q::Payload: serde::Serialize,
    {
        Schedule::new(self, Q::queue(), |_| schedule::encode(&payload))
    }

    /// Schedules many jobs in one call, of any queues:
    /// `dq.schedule_many(orders.map(|o| dq.schedule::<order_timeout>(o).after(d)))`.
    ///
    /// The answers come in the order of the jobs. If any of the jobs is refused, none is stored. A
    /// store may write a long bulk in several steps; after an error from the store, some of the
    /// jobs may be in it.
    #[must_use = "nothing is scheduled until this is awaited"]
    pub fn schedule_many(&self, jobs: impl IntoIterator<Item = Schedule>) -> ScheduleMany {
        ScheduleMany::new(self, jobs)
    }

    /// A new job id, for [`Schedule::id`].
    #[must_use]
    pub fn new_id(&self) -> JobId {
        let environment = &self.shared.environment;
        environment.entropy.job_id(environment.clock.now())
    }

    /// Takes a job back, by key or id.
    ///
    /// # Errors
    /// `InvalidInput` for a key that no job can have; otherwise what the store says.
    pub async fn cancel<Q: Queue>(&self, target: impl IntoTarget) -> Result<Cancelled> {
        self.queue_of::<Q>()?.cancel(target).await
    }

    /// Moves a job to another time, by key or id; a `Duration` counts from now.
    ///
    /// # Errors
    /// As [`Self::cancel`], and `InvalidInput` for a time that no job can have.
    pub async fn reschedule<Q: Queue>(
        &self,
        target: impl IntoTarget,
        due: impl Into<Due>,
    ) -> Result<Rescheduled> {
        self.queue_of::<Q>()?.reschedule(target, due).await
    }

    /// Looks at a job, by key or id; a dead one only by id.
    ///
    /// # Errors
    /// As [`Self::cancel`].
    pub async fn get<Q: Queue>(&self, target: impl IntoTarget) -> Result<Option<JobView>> {
        self.queue_of::<Q>()?.get(target).await
    }

    /// A queue by name, for operators and for payloads that are bytes.
    ///
    /// # Errors
    /// `InvalidInput` if no queue can have the name.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<QueueHandle> {
        Ok(QueueHandle::new(self.clone(), QueueName::new(name)?))
    }

    /// The queue of a handler or a [`queue!`](crate::queue).
    ///
    /// # Errors
    /// `InvalidInput` if its code is no valid name.
    pub fn queue_of<Q: Queue>(&self) -> Result<QueueHandle> {
        self.queue(Q::code())
    }

    /// Counts of all queues that the store knows, by name; those of drained stores are added.
    ///
    /// # Errors
    /// What the store says.
    pub async fn stats(&self) -> Result<Vec<QueueStats>> {
        self.stores().stats(&[]).await
    }

    /// Moves all jobs of another store into this one, each exactly once: see [`import`] for how,
    /// and for the steps in which it goes on after an interruption.
    ///
    /// It ends when the source has been seen empty but for what cannot be imported; jobs that others
    /// add meanwhile may be found or not, and are found by the next import.
    ///
    /// **Cancellation safety:** after an error, or when the `await` is dropped, call it again with
    /// the same source and store: it begins with what was under way. Until then, up to a hundred
    /// jobs wait in the source's journal, where nobody runs them; let no ten years pass.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot move or cancel jobs; otherwise what source and store say.
    pub async fn import(&self, source: impl ImportSource) -> Result<ImportReport> {
        import::Import::new(self, &source).run().await.map_err(|error| error.operation("import"))
    }

    /// What an operator should know about the store.
    pub async fn check(&self) -> Vec<Finding> {
        self.backend().check().await
    }

    /// Finishes what is in hand and releases the store. Runners are to be stopped before.
    ///
    /// # Errors
    /// What the store says.
    pub async fn close(&self) -> Result<()> {
        for store in self.stores().iter() {
            store.close().await?;
        }
        Ok(())
    }

    /// The store behind its checks.
    #[must_use]
    pub fn backend(&self) -> &Arc<Checked> {
        &self.shared.stores.main
    }

    fn stores(&self) -> &Stores {
        &self.shared.stores
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// Takes a name for a runner, until the guard is dropped.
    pub(crate) fn take_name(self: &Arc<Self>, name: &str) -> Result<NameGuard> {
        let mut names = lock(&self.runner_names);
        if !names.insert(name.to_owned()) {
            return Err(Error::new(
                ErrorKind::Duplicate,
                format!("a runner called {name:?} is running already"),
            )
            .remedy("leave the name out, or give each runner its own"));
        }
        Ok(NameGuard { shared: Arc::clone(self), name: name.to_owned() })
    }
}

/// Gives a runner's name back when dropped.
#[derive(Debug)]
pub(crate) struct NameGuard {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for NameGuard {
    fn drop(&mut self) {
        let mut names = lock(&self.shared.runner_names);
        names.remove(&self.name);
    }
}

/// What names a job of a queue: a key (text), or an id.
pub trait IntoTarget {
    /// The checked name.
    ///
    /// # Errors
    /// `InvalidInput` for a key that no job can have.
    fn into_target(self) -> Result<Target>;
}

impl IntoTarget for &str {
    fn into_target(self) -> Result<Target> {
        JobKey::new(self).map(Target::Key)
    }
}

impl IntoTarget for &String {
    fn into_target(self) -> Result<Target> {
        self.as_str().into_target()
    }
}

impl IntoTarget for String {
    fn into_target(self) -> Result<Target> {
        self.as_str().into_target()
    }
}

impl IntoTarget for JobKey {
    fn into_target(self) -> Result<Target> {
        Ok(Target::Key(self))
    }
}

impl IntoTarget for JobId {
    fn into_target(self) -> Result<Target> {
        Ok(Target::Id(self))
    }
}

impl IntoTarget for &Scheduled {
    fn into_target(self) -> Result<Target> {
        Ok(Target::Id(self.id()))
    }
}

impl IntoTarget for Target {
    fn into_target(self) -> Result<Target> {
        Ok(self)
    }
}

/// One job of one queue, from what a caller gives.
fn job_ref(queue: &QueueName, target: impl IntoTarget) -> Result<JobRef> {
    Ok(JobRef { queue: queue.clone(), target: target.into_target()? })
}

/// The answer to the one thing that was asked.
fn single<T>(answers: Vec<T>) -> Result<T> {
    answers.into_iter().next().ok_or_else(|| {
        Error::new(ErrorKind::Internal, "the backend gave no answer")
            .remedy("this is a bug of the backend")
    })
}
