//! Guards: functions that are asked just before a handler whether it should still run.

use std::borrow::Cow;
use std::time::Duration;

use super::context::JobContext;
use super::outcome::{JobError, Outcome};
use crate::error::BoxError;

/// The answer of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// The handler runs.
    Run,
    /// The job is skipped, for this reason.
    Skip(Cow<'static, str>),
}

impl Guard {
    /// [`Self::Skip`]: the job is no longer needed, for this reason.
    pub fn skip(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Skip(reason.into())
    }
}

/// A type that a guard can return: `bool`, [`Guard`], or a `Result` of either with any error.
#[diagnostic::on_unimplemented(
    message = "a guard cannot return `{Self}`",
    note = "return `bool`, `dq::Guard`, or a `Result` of either, where the error is any error type"
)]
pub trait IntoGuard {
    /// Converts to the common form; `None` is a `false`, which has no reason.
    ///
    /// # Errors
    /// The guard's error.
    fn into_guard(self) -> Result<Option<Guard>, BoxError>;
}

impl IntoGuard for bool {
    fn into_guard(self) -> Result<Option<Guard>, BoxError> {
        Ok(self.then_some(Guard::Run))
    }
}

impl IntoGuard for Guard {
    fn into_guard(self) -> Result<Option<Guard>, BoxError> {
        Ok(Some(self))
    }
}

impl<T: IntoGuard, E: Into<BoxError>> IntoGuard for Result<T, E> {
    fn into_guard(self) -> Result<Option<Guard>, BoxError> {
        self.map_err(Into::into).and_then(T::into_guard)
    }
}

/// Asks a guard; returns the outcome of the run if the handler must not run.
///
/// `answer` also decodes the payload and runs the extractors for the guard: its outer error is theirs
/// and ends the run as it is, and their time counts towards `limit`. An error of the guard, and an
/// answer that takes longer, is a failed attempt.
pub(super) async fn ask(
    ctx: &JobContext,
    name: &str,
    limit: Duration,
    answer: impl Future<Output = Result<Result<Option<Guard>, BoxError>, JobError>>,
) -> Result<Option<Outcome>, JobError> {
    let answer = tokio::select! {
        biased;
        answer = answer => answer?,
        () = ctx.sleep(limit) => {
            let limit = humantime::format_duration(limit);
            Err(format!("it did not answer within {limit}").into())
        }
    };
    match answer {
        Ok(Some(Guard::Run)) => Ok(None),
        Ok(Some(Guard::Skip(reason))) => Ok(Some(Outcome::Skip(reason))),
        Ok(None) => Ok(Some(Outcome::Skip(format!("the guard {name} said no").into()))),
        Err(error) => Err(JobError::Failed(format!("the guard {name} failed: {error}").into())),
    }
}
