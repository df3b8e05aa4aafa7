//! What runs around every handler.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::{Handler, JobContext, JobError, JobResult};

/// Runs around handlers: logging, metrics, guards. The first one added is the outermost.
///
/// It sees every result: errors, panics and timeouts of the handler come back from `next` as
/// [`JobError`]. What it returns is what counts.
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
    /// Runs one job, usually by `next.run(job).await`. Dropped when the lease's grace is over.
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult;
}

impl std::fmt::Debug for dyn Middleware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Middleware")
    }
}

/// The rest of the way to the handler.
pub struct Next<'a> {
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

    /// Goes on. Without middleware this costs nothing beyond the handler.
    pub async fn run(self, job: JobContext) -> JobResult {
        let Some((first, rest)) = self.rest.split_first() else {
            return run_handler(self.handler, job, self.timeout).await;
        };
        let next = Self { rest, ..self };
        caught(first.call(job, next)).await
    }
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").field("handler", &self.handler).finish_non_exhaustive()
    }
}

async fn run_handler(handler: &Handler, job: JobContext, timeout: Duration) -> JobResult {
    let run = caught(handler.run(job.clone()));
    if timeout == Duration::MAX {
        return run.await;
    }
    let mut run = std::pin::pin!(run);
    tokio::select! {
        // The handler first: one that ends in the very last moment has ended.
        biased;
        result = &mut run => result,
        // Made only when the handler has to be waited for.
        () = async { job.sleep(timeout).await } => {
            // For what the handler left running elsewhere: threads, child tasks.
            job.cancellation().cancel();
            if handler.is_blocking {
                // The thread goes on: a retry beside it would be the second run at a time.
                return run.await;
            }
            Err(JobError::TimedOut(timeout))
        }
    }
}

/// Turns a panic into an error. The handler's own data may be left in between two states, as after
/// any panic of a task; the framework's is not touched by it.
async fn caught(run: impl Future<Output = JobResult>) -> JobResult {
    match std::panic::AssertUnwindSafe(run).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&'static str>()
                .map(|message| (*message).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "with something that is not text".to_owned());
            Err(JobError::Panicked(message))
        }
    }
}
