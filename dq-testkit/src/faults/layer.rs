//! A backend around another one, of which only the difference is written.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Wakeups, async_trait,
};

/// What is different about a backend. Whatever is not overridden goes to the inner one.
#[async_trait]
pub trait Layer: Debug + Send + Sync + 'static {
    /// The backend around which this is.
    fn inner(&self) -> &Arc<dyn Backend>;

    /// Comes before every call that can fail, with the call's name; an error is its answer.
    async fn before(&self, call: &'static str) -> Result<()> {
        let _ = call;
        Ok(())
    }

    /// See [`Backend::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// See [`Backend::now`].
    async fn now(&self) -> Result<Timestamp> {
        self.inner().now().await
    }

    /// See [`Backend::schedule`].
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.inner().schedule(jobs).await
    }

    /// See [`Backend::cancel`].
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.inner().cancel(jobs).await
    }

    /// See [`Backend::reschedule`].
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.inner().reschedule(moves).await
    }

    /// See [`Backend::listen`].
    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.inner().listen(queues).await
    }

    /// See [`Backend::claim`].
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.inner().claim(params).await
    }

    /// See [`Backend::settle`].
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.inner().settle(settlements).await
    }

    /// See [`Backend::renew`].
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.inner().renew(renewals).await
    }

    /// See [`Backend::stats`].
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.inner().stats(queues).await
    }

    /// See [`Backend::browse`].
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.inner().browse(params).await
    }

    /// See [`Backend::get`].
    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.inner().get(job).await
    }

    /// See [`Backend::operate`].
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.inner().operate(operation).await
    }

    /// See [`Backend::close`].
    async fn close(&self) -> Result<()> {
        self.inner().close().await
    }
}

/// A [`Layer`] as a backend. The layer's own methods are there by `Deref`.
#[derive(Debug)]
pub struct Layered<L>(pub L);

impl<L> Deref for Layered<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

// `missing_trait_methods`: a method that is not forwarded would lose what the layer does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Layer> Backend for Layered<L> {
    fn name(&self) -> &'static str {
        self.0.inner().name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.0.before("now").await?;
        self.0.now().await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.0.before("schedule").await?;
        self.0.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.0.before("cancel").await?;
        self.0.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.0.before("reschedule").await?;
        self.0.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.0.before("listen").await?;
        self.0.listen(queues).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.0.before("claim").await?;
        self.0.claim(params).await
    }

    fn claim_ahead(&self) -> Duration {
        self.0.inner().claim_ahead()
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.0.before("settle").await?;
        self.0.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.0.before("renew").await?;
        self.0.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.0.before("stats").await?;
        self.0.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.0.before("browse").await?;
        self.0.browse(params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.0.before("get").await?;
        self.0.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.0.before("operate").await?;
        self.0.operate(operation).await
    }

    async fn check(&self) -> Vec<Finding> {
        self.0.inner().check().await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}
