//! Middleware: code that runs around every handler.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::callable::Handler;
use super::context::JobContext;
use super::outcome::{JobError, JobResult};
use super::panics::catch_run;

/// Code around every handler, such as logging, metrics and guards.
///
/// The first one added is the outermost. Reserved queues, which keep the schedules, run without
/// middleware.
///
/// `next.run(job)` returns the handler's errors and panics as [`JobError`]s. Your return value is
/// the run's result.
///
/// The queue's timeout covers middleware and handler together. When it passes, the run's
/// cancellation signal fires, an async handler is dropped, and `next.run(job)` returns
/// [`JobError::TimedOut`]. Middleware still running five seconds later is dropped too, and the run
/// has timed out. A blocking handler cannot be dropped: `next.run(job)` returns its result once it
/// ends.
///
/// ```
/// # use dq_core as dq;
/// struct Announce;
///
/// #[dq::async_trait]
/// impl dq::Middleware for Announce {
///     async fn call(&self, job: dq::JobContext, next: dq::Next<'_>) -> dq::JobResult {
///         println!("{} starts", job.queue());
///         next.run(job).await
///     }
/// }
/// ```
#[async_trait]
pub trait Middleware: Send + Sync + 'static {
    /// Runs one job, usually by `next.run(job).await`.
    ///
    /// This future is dropped when the runner's grace period ends, and with it the inner middleware
    /// and an async handler. If a blocking handler runs then, it is dropped a second after that has
    /// returned.
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult;
}

impl std::fmt::Debug for dyn Middleware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Middleware")
    }
}

/// Runs the rest of the middleware chain and the handler.
pub struct Next<'a> {
    rest: &'a [Arc<dyn Middleware>],
    handler: &'a Handler,
    timeout: &'a Timeout,
}

#[derive(Debug)]
pub(crate) struct Timeout {
    pub(crate) after: Duration,
    pub(crate) passed: CancellationToken,
}

impl<'a> Next<'a> {
    pub(crate) fn new(
        middleware: &'a [Arc<dyn Middleware>],
        handler: &'a Handler,
        timeout: &'a Timeout,
    ) -> Self {
        Self { rest: middleware, handler, timeout }
    }

    /// Runs the next middleware, or the handler.
    pub async fn run(self, job: JobContext) -> JobResult {
        let Some((first, rest)) = self.rest.split_first() else {
            return run_handler(self.handler, job, self.timeout).await;
        };
        let next = Self { rest, ..self };
        catch_run(first.call(job, next)).await
    }
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").field("handler", &self.handler).finish_non_exhaustive()
    }
}

/// Runs the handler until it ends or, unless its thread is busy, until the timeout.
async fn run_handler(handler: &Handler, job: JobContext, timeout: &Timeout) -> JobResult {
    if timeout.passed.is_cancelled() {
        return Err(JobError::TimedOut(timeout.after));
    }
    // The handler may also panic when dropped.
    catch_run(async {
        let mut run = (handler.run)(job.clone());
        tokio::select! {
            // The handler first: its result counts if it ends together with the timeout.
            biased;
            result = &mut run => result,
            () = timeout.passed.cancelled() => {
                if job.thread().is_busy_or_forbid() {
                    // A retry now would run beside the thread.
                    return run.await;
                }
                Err(JobError::TimedOut(timeout.after))
            }
        }
    })
    .await
}
