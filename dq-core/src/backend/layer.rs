//! Backends that wrap another one and forward the calls that they do not change.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::capability::Capabilities;
use super::check::Finding;
use super::claim::{ClaimParams, Claimed, Renewal, Renewed};
use super::contract::Backend;
use super::inspect::{Announced, Announcement, BrowseParams, Page, QueueStats};
use super::operate::{OperateReport, Operation};
use super::schedule::{Cancelled, Reschedule, Rescheduled, Scheduled};
use super::settle::{Settled, Settlement};
use super::wakeup::Wakeups;
use crate::error::Result;
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};

/// A backend that wraps another one; methods forward to [`inner`](Self::inner) by default.
///
/// Every `Layer` is a [`Backend`], by which it is to be called: only that calls [`before`](Self::before).
/// The methods of both traits have the same names, so import `Layer` to implement it, and `Backend` to
/// call methods on the concrete type of a layer.
///
/// ```
/// use dq_core::{Backend, Layer, QueueName, QueueStats, Result};
///
/// #[derive(Debug)]
/// struct WithoutTotals<B>(B);
///
/// #[dq_core::async_trait]
/// impl<B: Backend> Layer for WithoutTotals<B> {
///     fn inner(&self) -> &dyn Backend {
///         &self.0
///     }
///
///     async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
///         let mut stats = self.inner().stats(queues).await?;
///         stats.iter_mut().for_each(|queue| queue.totals = None);
///         Ok(stats)
///     }
/// }
/// ```
#[async_trait]
pub trait Layer: Debug + Send + Sync + 'static {
    /// The wrapped backend.
    fn inner(&self) -> &dyn Backend;

    /// Runs before each fallible method except `close`, with the name of that method. If it fails,
    /// its error is returned and the method is not called.
    async fn before(&self, method: &'static str) -> Result<()> {
        let _ = method;
        Ok(())
    }

    /// See [`Backend::name`].
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    /// See [`Backend::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// See [`Backend::claim_ahead`].
    fn claim_ahead(&self) -> Duration {
        self.inner().claim_ahead()
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

    /// See [`Backend::forecast`].
    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.inner().forecast(queue, edges).await
    }

    /// See [`Backend::announce`].
    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.inner().announce(announcement).await
    }

    /// See [`Backend::runners`].
    async fn runners(&self) -> Result<Vec<Announced>> {
        self.inner().runners().await
    }

    /// See [`Backend::check`].
    async fn check(&self) -> Vec<Finding> {
        self.inner().check().await
    }

    /// See [`Backend::close`].
    async fn close(&self) -> Result<()> {
        self.inner().close().await
    }
}

// `missing_trait_methods`: every method must be forwarded, or the default would hide the override
// of the inner backend.
#[diagnostic::do_not_recommend]
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: Layer> Backend for L {
    fn name(&self) -> &'static str {
        Layer::name(self)
    }

    fn capabilities(&self) -> Capabilities {
        Layer::capabilities(self)
    }

    fn claim_ahead(&self) -> Duration {
        Layer::claim_ahead(self)
    }

    fn wrapped(&self) -> Option<&dyn Backend> {
        Some(self.inner())
    }

    async fn now(&self) -> Result<Timestamp> {
        self.before("now").await?;
        Layer::now(self).await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.before("schedule").await?;
        Layer::schedule(self, jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.before("cancel").await?;
        Layer::cancel(self, jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.before("reschedule").await?;
        Layer::reschedule(self, moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.before("listen").await?;
        Layer::listen(self, queues).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.before("claim").await?;
        Layer::claim(self, params).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.before("settle").await?;
        Layer::settle(self, settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.before("renew").await?;
        Layer::renew(self, renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.before("stats").await?;
        Layer::stats(self, queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.before("browse").await?;
        Layer::browse(self, params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.before("get").await?;
        Layer::get(self, job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.before("operate").await?;
        Layer::operate(self, operation).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.before("forecast").await?;
        Layer::forecast(self, queue, edges).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.before("announce").await?;
        Layer::announce(self, announcement).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.before("runners").await?;
        Layer::runners(self).await
    }

    async fn check(&self) -> Vec<Finding> {
        Layer::check(self).await
    }

    async fn close(&self) -> Result<()> {
        Layer::close(self).await
    }
}
