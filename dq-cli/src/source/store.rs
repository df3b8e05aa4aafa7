//! Commands on a store, through `dq-ops`.

use dq_core::{Dq, Due, QueueName, Target};
#[cfg(feature = "redis")]
use dq_core::{ImportPreview, ImportReport, ImportSource};
use dq_ops::{
    Actor, BulkAction, BulkCount, BulkReport, FindingView, JobDetail, JobFilter, JobPage, JobQuery,
    Moved, Ops, QueueSummary, Role, RunnerSummary, ScheduleRequest, ScheduledJob, Session,
    Timeline,
};
use tokio::runtime::Runtime;

use super::Source;
use crate::failure::Result;

/// An open store. Whoever has its configuration may do everything.
pub(crate) struct StoreSource {
    runtime: Runtime,
    dq: Dq,
    pub(super) session: Session,
}

impl StoreSource {
    pub(crate) fn new(runtime: Runtime, dq: Dq) -> Self {
        let session = Ops::new(dq.clone()).session(Actor::new("cli", Role::Admin));
        Self { runtime, dq, session }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn import(
        &self,
        queue: &QueueName,
        source: &dyn ImportSource,
    ) -> Result<ImportReport> {
        self.wait(self.session.import(queue, source))
    }

    /// Counts what an import moves.
    #[cfg(feature = "redis")]
    pub(crate) fn preview_import(
        &self,
        queue: &QueueName,
        source: &dyn ImportSource,
    ) -> Result<ImportPreview> {
        self.wait(self.session.preview_import(queue, source))
    }

    pub(super) fn wait<T>(&self, call: impl Future<Output = dq_ops::Result<T>>) -> Result<T> {
        Ok(self.runtime.block_on(call)?)
    }
}

impl Source for StoreSource {
    fn queues(&self) -> Result<Vec<QueueSummary>> {
        Ok(self.wait(self.session.overview())?.queues)
    }

    fn queue(&self, queue: &QueueName) -> Result<QueueSummary> {
        self.wait(self.session.queue(queue))
    }

    fn jobs(&self, queue: &QueueName, query: &JobQuery) -> Result<JobPage> {
        self.wait(self.session.jobs(queue, query))
    }

    fn job(&self, queue: &QueueName, target: &Target) -> Result<JobDetail> {
        self.wait(self.session.job(queue, target))
    }

    fn timeline(&self, queue: &QueueName, target: &Target) -> Result<Timeline> {
        self.wait(self.session.timeline(queue, target))
    }

    fn cancel(&self, queue: &QueueName, target: &Target) -> Result<()> {
        self.wait(self.session.cancel(queue, target))
    }

    fn reschedule(&self, queue: &QueueName, target: &Target, due: Due) -> Result<Moved> {
        self.wait(self.session.reschedule(queue, target, due))
    }

    fn run_now(&self, queue: &QueueName, target: &Target) -> Result<Moved> {
        self.wait(self.session.run_now(queue, target))
    }

    fn replay(&self, queue: &QueueName, target: &Target) -> Result<()> {
        self.wait(self.session.replay(queue, target))
    }

    fn remove(&self, queue: &QueueName, target: &Target) -> Result<()> {
        self.wait(self.session.remove(queue, target))
    }

    fn count(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
    ) -> Result<BulkCount> {
        self.wait(self.session.count(queue, action, filter))
    }

    fn bulk(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
        expected: Option<u64>,
    ) -> Result<BulkReport> {
        self.wait(self.session.bulk(queue, action, filter, expected))
    }

    fn schedule(&self, queue: &QueueName, request: ScheduleRequest) -> Result<ScheduledJob> {
        self.wait(self.session.schedule(queue, request))
    }

    fn runners(&self) -> Result<Vec<RunnerSummary>> {
        self.wait(self.session.runners())
    }

    fn check(&self) -> Result<Vec<FindingView>> {
        self.wait(async { Ok(self.session.check().await) })
    }

    fn pause(&self, queue: &QueueName, create: bool) -> Result<bool> {
        match create {
            true => self.wait(self.session.create_paused(queue)),
            false => self.wait(self.session.pause(queue)),
        }
    }

    fn resume(&self, queue: &QueueName) -> Result<bool> {
        self.wait(self.session.resume(queue))
    }

    fn purge(&self, queue: &QueueName, typed: &str) -> Result<u64> {
        Ok(self.wait(self.session.purge(queue, typed))?.changed)
    }

    fn close(&self) -> dq_core::Result<()> {
        self.runtime.block_on(self.dq.close())
    }
}
