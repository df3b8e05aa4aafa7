//! What a handler says about its job, and what the framework makes of it.

use std::borrow::Cow;
use std::fmt;

use crate::error::BoxError;
use crate::model::Due;

/// What a handler that did not fail says about its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Done,
    /// There was nothing to do, and why: the guard said no, or it is too late.
    Skip(Cow<'static, str>),
    /// Not yet: come again then. Uses no attempt.
    Snooze(Due),
    /// Never: keep the job for an operator, and why. No retry.
    Dead(Cow<'static, str>),
}

impl Outcome {
    /// There was nothing to do.
    pub fn skip(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Skip(reason.into())
    }

    /// Not yet: a delay or a time.
    pub fn snooze(due: impl Into<Due>) -> Self {
        Self::Snooze(due.into())
    }

    /// Never: no retry will help.
    pub fn dead(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Dead(reason.into())
    }
}

/// What a handler returns when it can fail: any error goes, by `?`.
pub type HandlerResult<T = Outcome> = Result<T, BoxError>;

/// What a handler may return: `()`, [`Outcome`], or a `Result` of either with any error.
#[diagnostic::on_unimplemented(
    message = "a delay handler cannot return `{Self}`",
    note = "return `()`, `Outcome`, `Result<(), E>` or `Result<Outcome, E>`, where `E` is any error type"
)]
pub trait IntoOutcome {
    /// The common form.
    ///
    /// # Errors
    /// The handler's own error.
    fn into_outcome(self) -> HandlerResult;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> HandlerResult {
        Ok(self)
    }
}

impl<T: IntoOutcome, E: Into<BoxError>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> HandlerResult {
        self.map_err(Into::into).and_then(T::into_outcome)
    }
}

/// Why a run of a handler failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The handler, or an extractor of the user's, returned an error.
    Failed(BoxError),
    /// The handler panicked, with the message.
    Panicked(String),
    /// The handler ran longer than its timeout and was dropped.
    TimedOut(std::time::Duration),
    /// The payload is not what the handler takes; running it again will not help.
    Undecodable(BoxError),
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "{error}"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::TimedOut(after) => {
                write!(f, "timed out after {}", humantime::format_duration(*after))
            }
            Self::Undecodable(error) => write!(f, "the payload does not decode: {error}"),
        }
    }
}

/// What a run of a handler came to.
pub type JobResult = Result<Outcome, JobError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_type_goes() {
        fn text() -> Result<(), &'static str> {
            Err("no")
        }
        assert_eq!(text().into_outcome().unwrap_err().to_string(), "no");
        assert_eq!(().into_outcome().unwrap(), Outcome::Done);
        let snooze: HandlerResult = Ok(Outcome::snooze(std::time::Duration::from_secs(1)));
        assert!(matches!(snooze.into_outcome(), Ok(Outcome::Snooze(Due::After(_)))));
    }
}
