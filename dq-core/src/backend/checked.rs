//! Validates input and capabilities before the store is called.

use std::sync::Arc;

use async_trait::async_trait;

use super::claim::{ClaimParams, Claimed};
use super::contract::Backend;
use super::envelope;
use super::inspect::{Announced, Announcement, BrowseParams, Page};
use super::layer::Layer;
use super::operate::{OperateReport, Operation};
use super::schedule::{Cancelled, Reschedule, Rescheduled, Scheduled};
use super::settle::{Settled, Settlement, Verdict};
use super::statement::SqlStatement;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::model::{
    Headers, JobRef, JobState, JobView, Limits, NewJob, OnRunning, QueueName, Timestamp,
};

/// Maximum job ids in one administrative operation, and jobs on one page.
const MAX_IDS: usize = 1_000;

/// A backend that rejects calls beyond the [`Limits`] or its [capabilities](super::Capabilities).
///
/// It also unpacks headers stored with a payload. Of settlements it checks only the capability: the
/// runner validates due times and payloads from handlers, because invalid ones are failed attempts.
#[derive(Debug, Clone)]
pub struct Checked {
    backend: Arc<dyn Backend>,
    limits: Limits,
    // This process's clock is exact enough, because the horizon only catches wrong units. It saves
    // a call to the store.
    clock: Arc<dyn Clock>,
}

impl Checked {
    /// Wraps `backend`; `clock` checks due times against the horizon.
    pub fn new(backend: Arc<dyn Backend>, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self { backend, limits, clock }
    }

    /// Validates new jobs as [`schedule`](Layer::schedule) does.
    pub(crate) fn validate(&self, jobs: &[NewJob]) -> Result<()> {
        const OPERATION: &str = "schedule";
        if jobs.len() > self.limits.bulk {
            return Err(Error::invalid(format!(
                "the call schedules {} jobs; at most {} are allowed",
                jobs.len(),
                self.limits.bulk
            ))
            .remedy("schedule in several calls, or raise `limits.bulk`")
            .operation(OPERATION));
        }
        let capabilities = self.backend.capabilities();
        if jobs.iter().any(|job| job.key.is_some()) {
            self.require(capabilities.keys, "keys", OPERATION)?;
        }
        if jobs.iter().any(|job| job.headers.get(Headers::GROUP).is_some()) {
            self.require(capabilities.groups, "groups", OPERATION)?;
        }
        if jobs.iter().any(|job| job.on_running == OnRunning::Detach) {
            self.require(capabilities.detach, "detaching running jobs from their keys", OPERATION)?;
        }
        if jobs.iter().any(|job| !job.remember.is_zero()) {
            self.require(capabilities.history, "remembering ended jobs", OPERATION)?;
        }
        let now = self.clock.now();
        for job in jobs {
            self.limits.check(job, now).map_err(|error| error.operation(OPERATION))?;
        }
        Ok(())
    }

    /// Validates a listing as [`browse`](Layer::browse) does.
    pub(crate) fn validate_browse(&self, params: &BrowseParams<'_>) -> Result<()> {
        const OPERATION: &str = "browse";
        self.require(self.backend.capabilities().browse, "browsing", OPERATION)?;
        if params.state == JobState::Ended {
            self.require(self.backend.capabilities().history, "a history of jobs", OPERATION)?;
        }
        if !(1..=MAX_IDS).contains(&params.limit) {
            return Err(Error::invalid(format!(
                "the page size is {}; it must be between 1 and 1,000",
                params.limit
            ))
            .operation(OPERATION));
        }
        Ok(())
    }

    fn require(&self, has_capability: bool, feature: &str, operation: &'static str) -> Result<()> {
        if has_capability {
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

    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.validate(&jobs)?;
        jobs.iter_mut().for_each(envelope::escape_payload);
        self.backend.schedule(jobs).await
    }

    fn schedule_statement(&self, mut jobs: Vec<NewJob>) -> Result<SqlStatement> {
        self.validate(&jobs)?;
        jobs.iter_mut().for_each(envelope::escape_payload);
        self.backend.schedule_statement(jobs)
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.require(self.backend.capabilities().cancel, "cancel", "cancel")?;
        self.backend.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        const OPERATION: &str = "reschedule";
        self.require(self.backend.capabilities().reschedule, "reschedule", OPERATION)?;
        let now = self.clock.now();
        for reschedule in moves {
            reschedule
                .due
                .validate(now, self.limits.horizon)
                .map_err(|error| error.operation(OPERATION))?;
        }
        self.backend.reschedule(moves).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = self.backend.claim(params).await?;
        claimed.jobs.iter_mut().for_each(|leased| envelope::unwrap(&mut leased.job));
        claimed.quarantined.iter_mut().for_each(|(job, _)| envelope::unwrap(job));
        Ok(claimed)
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.validate_browse(&params)?;
        let mut page = self.backend.browse(params).await?;
        page.jobs.iter_mut().for_each(|view| envelope::unwrap(&mut view.job));
        Ok(page)
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.require(self.backend.capabilities().browse, "reading single jobs", "get")?;
        let mut view = self.backend.get(job).await?;
        view.iter_mut().for_each(|view| envelope::unwrap(&mut view.job));
        Ok(view)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let is_again =
            |settlement: &Settlement| matches!(settlement.verdict, Verdict::Again { .. });
        if settlements.iter().any(is_again) {
            self.require(self.backend.capabilities().again, "next steps of jobs", "settle")?;
        }
        if settlements.iter().any(|it| matches!(it.verdict, Verdict::Throttle(_))) {
            self.require(self.backend.capabilities().flow, "throttled queues", "settle")?;
        }
        self.backend.settle(settlements).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.require(self.backend.capabilities().forecast, "forecasts", "forecast")?;
        if !edges.is_sorted() {
            return Err(Error::invalid("the edges of a forecast do not ascend")
                .remedy("sort them")
                .operation("forecast"));
        }
        self.backend.forecast(queue, edges).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let has_registry = self.backend.capabilities().registry;
        self.require(has_registry, "announcements of runners", "announce")?;
        if announcement.info.len() > Announcement::MAX_BYTES {
            return Err(Error::invalid(format!(
                "the announcement of {} has {} bytes; at most {} are allowed",
                announcement.name,
                announcement.info.len(),
                Announcement::MAX_BYTES
            ))
            .operation("announce"));
        }
        self.backend.announce(announcement).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        let has_registry = self.backend.capabilities().registry;
        self.require(has_registry, "announcements of runners", "runners")?;
        self.backend.runners().await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let capabilities = self.backend.capabilities();
        if let Operation::Replay { jobs, .. } | Operation::Remove { jobs, .. } = operation
            && jobs.len() > MAX_IDS
        {
            return Err(Error::invalid(format!(
                "the call names {} jobs; at most {MAX_IDS} are allowed",
                jobs.len()
            ))
            .remedy("use several calls")
            .operation("operate"));
        }
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
            Operation::Pause { .. } => self.require(capabilities.pause, "pausing", "pause")?,
            Operation::Resume { .. } => self.require(capabilities.pause, "pausing", "resume")?,
            Operation::DeclareFlow { flow, .. }
            | Operation::OverrideFlow { flow: Some(flow), .. } => {
                self.require(capabilities.flow, "limits of queues", "limit")?;
                if flow.group_max_running.is_some() {
                    self.require(capabilities.groups, "groups", "limit")?;
                }
                flow.validate().map_err(|error| error.operation("limit"))?;
            }
            Operation::OverrideFlow { flow: None, .. } => {
                self.require(capabilities.flow, "limits of queues", "limit")?;
            }
            Operation::Purge { .. } => {}
        }
        self.backend.operate(operation).await
    }
}
