//! Runs synchronous handlers on threads for blocking calls.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::context::JobContext;
use super::outcome::{IntoOutcome, JobError, JobResult};
use crate::trace::CarriedContext;

/// Runs a synchronous handler on a thread for blocking calls.
pub async fn run_blocking<R, F>(ctx: &JobContext, call: F) -> JobResult
where
    R: IntoOutcome + 'static,
    F: FnOnce() -> R + Send + 'static,
{
    let thread = ctx.thread().clone();
    let carried = CarriedContext::current();
    let run = move || {
        let busy = thread.start()?;
        // Converted on that thread, because the return type need not be `Send`.
        let call = || call().into_outcome().map_err(JobError::Failed);
        let result = catch_unwind(AssertUnwindSafe(|| carried.run(call)));
        // The thread stays busy until its result is received below or dropped.
        Some((result, busy))
    };
    match tokio::task::spawn_blocking(run).await {
        Ok(Some((Ok(result), _busy))) => result,
        // The runner catches and reports it like any other panic.
        Ok(Some((Err(panic), _busy))) => resume_unwind(panic),
        Ok(None) => Err(JobError::Failed("the run was ended before its thread started".into())),
        Err(failure) => Err(JobError::Failed(failure.into())),
    }
}
