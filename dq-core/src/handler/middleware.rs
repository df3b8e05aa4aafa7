//! Middleware: code that runs around every handler.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::context::JobContext;
use super::function::Handler;
use super::outcome::{JobError, JobResult};
use super::panics::catch_run;

/// Code that runs around every handler, such as logging, metrics and guards. The first one added is
/// the outermost. It does not run around jobs of reserved queues, which keep the schedules.
///
/// `next.run(job)` returns errors and panics of the handler as [`JobError`]s. The middleware's return
/// value is the result of the run.
///
/// The timeout of the queue covers the middleware and the handler together. When it has passed, the
/// cancellation signal of the run fires, an async handler is dropped, and `next.run(job)` returns
/// [`JobError::TimedOut`]. Middleware that has not returned five seconds later is dropped too, and
/// the run has timed out. A blocking handler cannot be dropped: `next.run(job)` returns its result
/// when it has returned.
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
    /// At the end of the runner's grace period, this future is dropped, and with it the inner
    /// middleware and an async handler; a blocking handler goes on until it returns.
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult;
}

impl std::fmt::Debug for dyn Middleware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Middleware")
    }
}

/// Runs the rest of the middleware chain and the handler.
pub struct Next<'a> {
    /// The middleware that has not run yet, outermost first.
    rest: &'a [Arc<dyn Middleware>],
    handler: &'a Handler,
    timeout: &'a Timeout,
}

/// The timeout of one run.
#[derive(Debug)]
pub(crate) struct Timeout {
    pub(crate) after: Duration,
    /// Fires when the timeout has passed.
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

    /// Runs the next middleware, or the handler if there is none.
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

/// Runs the handler until it ends or, unless its thread is busy, until the timeout has passed.
async fn run_handler(handler: &Handler, job: JobContext, timeout: &Timeout) -> JobResult {
    if timeout.passed.is_cancelled() {
        return Err(JobError::TimedOut(timeout.after));
    }
    // The handler may panic when it is dropped, too.
    catch_run(async {
        let mut run = handler.run(job.clone());
        tokio::select! {
            // The handler first: if it ends at the same moment as the timeout, its result counts.
            biased;
            result = &mut run => result,
            () = timeout.passed.cancelled() => {
                if job.thread().is_busy_or_forbid() {
                    // A retry now would run concurrently with the thread.
                    return run.await;
                }
                Err(JobError::TimedOut(timeout.after))
            }
        }
    })
    .await
}
