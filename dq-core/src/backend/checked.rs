//! The one place where input is checked and missing capabilities are refused, whatever the
//! backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, OperateReport,
    Operation, Page, QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Settled,
    Settlement, Wakeups,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::model::{JobRef, JobView, Limits, NewJob, QueueName, Timestamp};

/// A backend behind the checks of [`Limits`] and [`Capabilities`].
///
/// Names are checked when they are made ([`QueueName`], [`JobKey`](crate::JobKey)); what is left
/// is checked here, before the store is called.
#[derive(Debug, Clone)]
pub struct Checked {
    backend: Arc<dyn Backend>,
    limits: Limits,
    // The horizon is a bound against mistakes of units, so this process's clock will do and saves
    // a call to the store.
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
    pub fn inner(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    fn require(&self, offered: bool, feature: &str, operation: &'static str) -> Result<()> {
        if offered {
            return Ok(());
        }
        Err(Error::unsupported(self.backend.name(), feature).operation(operation))
    }
}

// `missing_trait_methods`: a method that is not forwarded would lose what the backend does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Checked {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.backend.now().await
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
            self.require(self.capabilities().keys, "keys", OPERATION)?;
        }
        let now = self.clock.now();
        for job in &jobs {
            self.limits.check(job, now).map_err(|error| error.operation(OPERATION))?;
        }
        self.backend.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.require(self.capabilities().cancel, "cancel", "cancel")?;
        self.backend.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        const OPERATION: &str = "reschedule";
        self.require(self.capabilities().reschedule, "reschedule", OPERATION)?;
        let now = self.clock.now();
        for wish in moves {
            wish.due
                .validate(now, self.limits.horizon)
                .map_err(|error| error.operation(OPERATION))?;
        }
        self.backend.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.backend.listen(queues).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.backend.claim(params).await
    }

    fn claim_ahead(&self) -> Duration {
        self.backend.claim_ahead()
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.backend.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.backend.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.backend.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        const OPERATION: &str = "browse";
        self.require(self.capabilities().browse, "browsing", OPERATION)?;
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
        self.require(self.capabilities().browse, "looking at single jobs", "get")?;
        self.backend.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let capabilities = self.capabilities();
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

    async fn check(&self) -> Vec<Finding> {
        self.backend.check().await
    }

    async fn close(&self) -> Result<()> {
        self.backend.close().await
    }
}
