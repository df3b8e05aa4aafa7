//! Checks of input and capabilities, done once for all backends before the store is called.

use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Backend, BrowseParams, Cancelled, Layer, OperateReport, Operation, Page, Reschedule,
    Rescheduled, Scheduled,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::model::{JobRef, JobView, Limits, NewJob};

/// A backend behind the checks of [`Limits`] and [`Capabilities`](super::Capabilities).
///
/// Names are checked when they are made ([`QueueName`](crate::QueueName),
/// [`JobKey`](crate::JobKey)); everything else is checked here, before the store is called.
#[derive(Debug, Clone)]
pub struct Checked {
    backend: Arc<dyn Backend>,
    limits: Limits,
    // The horizon only catches mistaken units, so this process's clock is good enough and saves a
    // call to the store.
    clock: Arc<dyn Clock>,
}

impl Checked {
    /// Puts `backend` behind the checks.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self { backend, limits, clock }
    }

    /// The backend without the checks.
    #[must_use]
    pub const fn unchecked(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    fn require(&self, offered: bool, feature: &str, operation: &'static str) -> Result<()> {
        if offered {
            return Ok(());
        }
        Err(Error::unsupported(self.backend.name(), feature).operation(operation))
    }
}

#[async_trait]
impl Layer for Checked {
    fn inner(&self) -> &dyn Backend {
        &*self.backend
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        const OPERATION: &str = "schedule";
        if jobs.len() > self.limits.bulk {
            return Err(Error::invalid(format!(
                "a bulk of {} jobs; at most {} are allowed",
                jobs.len(),
                self.limits.bulk
            ))
            .remedy("schedule in several calls, or raise `limits.bulk`")
            .operation(OPERATION));
        }
        if jobs.iter().any(|job| job.key.is_some()) {
            self.require(self.backend.capabilities().keys, "keys", OPERATION)?;
        }
        let now = self.clock.now();
        for job in &jobs {
            self.limits.check(job, now).map_err(|error| error.operation(OPERATION))?;
        }
        self.backend.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.require(self.backend.capabilities().cancel, "cancel", "cancel")?;
        self.backend.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        const OPERATION: &str = "reschedule";
        self.require(self.backend.capabilities().reschedule, "reschedule", OPERATION)?;
        let now = self.clock.now();
        for change in moves {
            change
                .due
                .validate(now, self.limits.horizon)
                .map_err(|error| error.operation(OPERATION))?;
        }
        self.backend.reschedule(moves).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        const OPERATION: &str = "browse";
        self.require(self.backend.capabilities().browse, "browsing", OPERATION)?;
        if !(1..=1_000).contains(&params.limit) {
            return Err(Error::invalid(format!(
                "a page of {} jobs; between 1 and 1,000 are allowed",
                params.limit
            ))
            .operation(OPERATION));
        }
        self.backend.browse(params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.require(self.backend.capabilities().browse, "looking at single jobs", "get")?;
        self.backend.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let capabilities = self.backend.capabilities();
        match operation {
            Operation::Replay { due, .. } => {
                self.require(capabilities.dead_letters, "dead-letter replay", "replay")?;
                let now = self.clock.now();
                due.validate(now, self.limits.horizon)
                    .map_err(|error| error.operation("replay"))?;
            }
            Operation::Remove { .. } => {
                self.require(capabilities.dead_letters, "dead-letter removal", "remove")?;
            }
            Operation::Pause { .. } | Operation::Resume { .. } => {
                self.require(capabilities.pause, "pausing", "pause")?;
            }
            Operation::Purge { .. } => {}
        }
        self.backend.operate(operation).await
    }
}
