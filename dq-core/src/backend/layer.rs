//! Backends that wrap another one and forward unchanged calls.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::capability::Capabilities;
use super::check::Finding;
use super::claim::{ClaimParams, Claimed, Lease, Renewal, Renewed};
use super::contract::Backend;
use super::inspect::{Announced, Announcement, BrowseParams, Page, QueueStats};
use super::operate::{OperateReport, Operation};
use super::schedule::{Cancelled, Reschedule, Rescheduled, Scheduled};
use super::settle::{Settled, Settlement};
use super::statement::SqlStatement;
use super::wakeup::Wakeups;
use crate::error::Result;
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};

/// Declares [`Layer`] and implements [`Backend`] for it. The list has all fallible methods except
/// `close`.
macro_rules! layer {
    ($($method:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        /// A backend that wraps another one; methods forward to [`inner`](Self::inner) by default.
        ///
        /// Call a layer through [`Backend`], because only that runs [`before`](Self::before). Both
        /// traits have the same method names: import `Layer` to implement it, and `Backend` to call
        /// a concrete layer type.
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
            /// Returns the wrapped backend.
            fn inner(&self) -> &dyn Backend;

            /// Runs before each fallible method except `close`, with the method's name.
            ///
            /// If it fails, the method is not called.
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

            $(
                #[doc = concat!("See [`Backend::", stringify!($method), "`].")]
                async fn $method(&self $(, $argument: $type)*) -> Result<$output> {
                    self.inner().$method($($argument),*).await
                }
            )*

            /// See [`Backend::schedule_statement`].
            fn schedule_statement(&self, jobs: Vec<NewJob>) -> Result<SqlStatement> {
                self.inner().schedule_statement(jobs)
            }

            /// See [`Backend::done_statement`].
            fn done_statement(&self, lease: &Lease) -> Result<SqlStatement> {
                self.inner().done_statement(lease)
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

        // The lint catches a forgotten method, which hides the inner backend's.
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

            fn schedule_statement(&self, jobs: Vec<NewJob>) -> Result<SqlStatement> {
                Layer::schedule_statement(self, jobs)
            }

            fn done_statement(&self, lease: &Lease) -> Result<SqlStatement> {
                Layer::done_statement(self, lease)
            }

            fn wrapped(&self) -> Option<&dyn Backend> {
                Some(self.inner())
            }

            $(
                async fn $method(&self $(, $argument: $type)*) -> Result<$output> {
                    self.before(stringify!($method)).await?;
                    Layer::$method(self $(, $argument)*).await
                }
            )*

            async fn check(&self) -> Vec<Finding> {
                Layer::check(self).await
            }

            async fn close(&self) -> Result<()> {
                Layer::close(self).await
            }
        }
    };
}

layer! {
    now() -> Timestamp;
    schedule(jobs: Vec<NewJob>) -> Vec<Scheduled>;
    cancel(jobs: &[JobRef]) -> Vec<Cancelled>;
    reschedule(moves: &[Reschedule]) -> Vec<Rescheduled>;
    listen(queues: &[QueueName], worker: &str) -> Wakeups;
    claim(params: ClaimParams<'_>) -> Claimed;
    settle(settlements: &[Settlement]) -> Vec<Settled>;
    renew(renewals: &[Renewal]) -> Vec<Renewed>;
    stats(queues: &[QueueName]) -> Vec<QueueStats>;
    browse(params: BrowseParams<'_>) -> Page;
    get(job: &JobRef) -> Option<JobView>;
    operate(operation: Operation<'_>) -> OperateReport;
    forecast(queue: &QueueName, edges: &[Timestamp]) -> Vec<u64>;
    announce(announcement: Announcement) -> ();
    runners() -> Vec<Announced>;
}
