//! Middleware: code that runs around every handler.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::context::JobContext;
use super::function::Handler;
use super::outcome::{JobError, JobResult};

/// Code that runs around every handler, such as logging, metrics and guards. The first one added is
/// the outermost.
///
/// `next.run(job)` returns errors and panics of the handler as [`JobError`]s. At the timeout, an
/// async handler is dropped and the result is [`JobError::TimedOut`]. A blocking handler cannot be
/// dropped: its cancellation signal fires, and `next.run(job)` returns its result when it has
/// returned. The middleware's return value is the result of the run.
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
    /// The timeout applies to the handler only. At the end of the runner's grace period, this
    /// future is dropped, and with it the inner middleware and an async handler; a blocking handler
    /// goes on until it returns.
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
    timeout: Duration,
}

impl<'a> Next<'a> {
    pub(crate) fn new(
        middleware: &'a [Arc<dyn Middleware>],
        handler: &'a Handler,
        timeout: Duration,
    ) -> Self {
        Self { rest: middleware, handler, timeout }
    }

    /// Runs the next middleware, or the handler if there is none.
    pub async fn run(self, job: JobContext) -> JobResult {
        let Some((first, rest)) = self.rest.split_first() else {
            return run_handler(self.handler, job, self.timeout).await;
        };
        let next = Self { rest, ..self };
        catch_panic(first.call(job, next)).await
    }
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").field("handler", &self.handler).finish_non_exhaustive()
    }
}

/// Runs the handler until it ends or, if it is async, until its timeout.
async fn run_handler(handler: &Handler, job: JobContext, timeout: Duration) -> JobResult {
    let run = catch_panic(handler.run(job.clone()));
    if timeout == Duration::MAX {
        return run.await;
    }
    let mut run = std::pin::pin!(run);
    tokio::select! {
        // The handler first: if it ends at the same moment as the timeout, its result counts.
        biased;
        result = &mut run => result,
        // The timer is created only if the handler is not ready at once.
        () = async { job.sleep(timeout).await } => {
            // Stops threads and child tasks that the handler has started.
            job.cancellation().cancel();
            if handler.is_blocking {
                // The thread cannot be stopped; a retry now would run concurrently with it.
                return run.await;
            }
            Err(JobError::TimedOut(timeout))
        }
    }
}

/// Converts a panic to an error. Unwind safe: the future is dropped, and it shares no state with
/// the runner.
async fn catch_panic(run: impl Future<Output = JobResult>) -> JobResult {
    match std::panic::AssertUnwindSafe(run).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&'static str>()
                .map(|message| (*message).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "with a value that is not text".to_owned());
            Err(JobError::Panicked(message))
        }
    }
}
