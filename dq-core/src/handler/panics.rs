//! Catches panics in application code, which must not end the runner's tasks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

use super::outcome::{JobError, JobResult};

/// Calls application code and returns a panic's message as error.
pub(crate) fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    // Unwind safe, because the application's values are not used after a panic.
    catch_unwind(AssertUnwindSafe(call)).map_err(message)
}

pub(crate) async fn catch_run(run: impl Future<Output = JobResult>) -> JobResult {
    catch_future(run).await.unwrap_or_else(|panic| Err(JobError::Panicked(panic)))
}

/// Awaits code from the application or another crate. Returns a panic's message as error.
pub(crate) async fn catch_future<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(message)
}

/// Returns the result and its error text, empty without an error. Replaces an error that cannot be
/// displayed.
///
/// The runner uses only this text, because the next call of `Display` may panic.
pub(crate) fn display_error(result: JobResult) -> (JobResult, String) {
    let Err(error) = result else { return (result, String::new()) };
    match catch(|| error.to_string()) {
        Ok(text) => (Err(error), text),
        Err(panic) => {
            let what = format!("in the Display of the handler's error: {panic}");
            drop_caught(error);
            let error = JobError::Panicked(what);
            let text = error.to_string();
            (Err(error), text)
        }
    }
}

/// Drops an application value; logs a panic.
pub(crate) fn drop_caught<T>(value: T) {
    if let Err(panic) = catch(|| drop(value)) {
        tracing::error!(%panic, "a value of the handler panicked when it was dropped");
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let message = panic
        .downcast_ref::<&'static str>()
        .map(|message| (*message).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with a value that is not text".to_owned());
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Dropping it could panic again, without end.
        std::mem::forget(second);
    }
    message
}
