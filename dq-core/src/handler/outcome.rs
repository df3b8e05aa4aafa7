//! Handler results.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::error::{BoxError, Result as DqResult};
use crate::model::{Due, IntoDue, codec, format_exact_duration};

/// A handler's result, unless it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is done.
    Done,
    /// There was nothing to do, for this reason. The job counts as skipped.
    Skip(Cow<'static, str>),
    /// Runs the job again at this time. Uses no attempt.
    Snooze(Due),
    /// Like [`Self::Snooze`], and no job of the queue starts before this time, in any process.
    Throttle(Due),
    /// The run failed for this reason, and retrying before this delay is useless. The queue's
    /// backoff is added to the delay. Uses an attempt, as any failure.
    RetryAfter(Duration, Cow<'static, str>),
    /// Keeps the job as dead, for this reason, without a retry.
    Dead(Cow<'static, str>),
    /// Runs the same job again at this time, with another payload. Attempts start again.
    Again(Due, Bytes),
    /// Goes on to the next escalation step, at this time or its own, with another payload or the
    /// same. Attempts start again.
    NextStep(Option<Due>, Option<Bytes>),
}

impl Outcome {
    /// Returns [`Self::Skip`]: there was nothing to do.
    pub fn skip(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Skip(reason.into())
    }

    /// Returns [`Self::Snooze`]: run again after a delay or at a time.
    pub fn snooze(due: impl IntoDue) -> Self {
        Self::Snooze(due.into())
    }

    /// Returns [`Self::Throttle`]: no job of the queue starts for this time, for example because a
    /// service says that there were too many calls.
    ///
    /// The store must have [`Capabilities::flow`](crate::Capabilities::flow); else the run fails.
    pub fn throttle(due: impl IntoDue) -> Self {
        Self::Throttle(due.into())
    }

    /// Returns [`Self::RetryAfter`], for example when a service says when to ask again.
    pub fn retry_after(delay: Duration, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::RetryAfter(delay, reason.into())
    }

    /// Returns [`Self::Again`]: the job's next step, after a delay or at a time.
    ///
    /// The job keeps its id and key. So a cancel between two steps ends the chain, and a crash
    /// neither forks nor loses it.
    ///
    /// # Errors
    /// `Codec` if the payload does not encode.
    pub fn again<T: Serialize>(due: impl IntoDue, payload: &T) -> DqResult<Self> {
        Ok(Self::Again(due.into(), codec::encode(payload)?))
    }

    /// Returns [`Self::NextStep`]: the queue's next escalation step, after its delay.
    ///
    /// The job keeps its id and key, so a cancel between two steps ends the escalation. After the
    /// last step the job is dead; see [`JobContext::is_last_step`].
    ///
    /// [`JobContext::is_last_step`]: crate::JobContext::is_last_step
    pub const fn next_step() -> Self {
        Self::NextStep(None, None)
    }

    /// Returns [`Self::next_step`] with this delay or time instead of the escalation's own.
    ///
    /// Later steps keep their delays, from the end of the step before or the first step's due time,
    /// as the handler says.
    pub fn next_step_at(due: impl IntoDue) -> Self {
        Self::NextStep(Some(due.into()), None)
    }

    /// Returns [`Self::next_step`] with another payload.
    ///
    /// # Errors
    /// `Codec` if the payload does not encode.
    pub fn next_step_with<T: Serialize>(payload: &T) -> DqResult<Self> {
        Ok(Self::NextStep(None, Some(codec::encode(payload)?)))
    }

    /// Returns [`Self::next_step_at`] with another payload.
    ///
    /// # Errors
    /// `Codec` if the payload does not encode.
    pub fn next_step_at_with<T: Serialize>(due: impl IntoDue, payload: &T) -> DqResult<Self> {
        Ok(Self::NextStep(Some(due.into()), Some(codec::encode(payload)?)))
    }

    /// Returns [`Self::Dead`]: no retry will help.
    pub fn dead(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Dead(reason.into())
    }
}

/// A handler's return type; `?` accepts any error.
pub type HandlerResult<T = Outcome> = Result<T, BoxError>;

/// A type for handlers to return: `()`, [`Outcome`], or a `Result` of either with any error.
#[diagnostic::on_unimplemented(
    message = "a delay handler cannot return `{Self}`",
    note = "return `()`, `Outcome`, `Result<(), E>` or `Result<Outcome, E>`, where `E` is any error type"
)]
pub trait IntoOutcome {
    /// Converts to the common form.
    ///
    /// # Errors
    /// The handler's error.
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

/// The reason for a failed run.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The handler or an extractor returned an error.
    Failed(BoxError),
    /// The handler panicked with this message.
    Panicked(String),
    /// The run exceeded this timeout. Its async handler or middleware was dropped.
    TimedOut(std::time::Duration),
    /// The payload does not fit the handler's type; a retry would not help.
    Undecodable(BoxError),
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "{error}"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::TimedOut(after) => write!(f, "timed out after {}", format_exact_duration(*after)),
            Self::Undecodable(error) => write!(f, "the payload does not decode: {error}"),
        }
    }
}

/// A run's result, as its [`Middleware`](super::Middleware) gets it.
pub type JobResult = Result<Outcome, JobError>;
