//! Guards decide, just before a handler, if it should still run.

use std::borrow::Cow;

use super::context::JobContext;
use super::extract::{FromJob, Payload};
use super::outcome::JobError;
use super::state::Requirements;
use crate::error::BoxError;
use crate::model::Job;

/// A guard's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// The handler runs.
    Run,
    /// The job is skipped, with this reason.
    Skip(Cow<'static, str>),
}

impl Guard {
    /// Returns [`Self::Skip`], for a job no longer needed.
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
    /// Converts to the common form; `None` for `false`, which has no reason.
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

/// An async function that can guard a handler with payload `P`.
///
/// It takes extractors, and then optionally the payload. `M` tells the implementations apart, one
/// per argument list.
#[diagnostic::on_unimplemented(
    message = "this function cannot be the guard of a handler with the payload `{P}`",
    label = "a guard is an `async fn` of extractors, and then of the payload `{P}`; it takes those that it needs",
    note = "extractors are `dq::JobContext`, `dq::State<T>` and types that implement `dq::FromJob`, at most eight; the future must be `Send`"
)]
pub trait GuardFn<M, P>: Send + 'static {
    /// The return type.
    type Answer;

    /// Declares the arguments' state.
    fn requires(requirements: &mut Requirements);

    /// Makes the arguments and calls the function.
    fn ask(
        self,
        ctx: &JobContext,
        decode: fn(&Job) -> Result<P, JobError>,
    ) -> impl Future<Output = Result<Self::Answer, JobError>> + Send;
}

/// Marks functions that take only extractors.
#[derive(Debug)]
pub struct OnlyExtractors;

/// Marks functions with the payload as last argument.
#[derive(Debug)]
pub struct ThenPayload;

macro_rules! guard_functions {
    ($($extractor:ident)*) => {
        guard_functions!(OnlyExtractors: $($extractor)*;);
        guard_functions!(ThenPayload: $($extractor)*; payload: P);
    };
    ($marker:ident: $($extractor:ident)*; $($value:ident: $payload:ident)?) => {
        #[diagnostic::do_not_recommend]
        impl<F, A, P, $($extractor,)*> GuardFn<($marker, $($extractor,)*), P> for F
        where
            F: FnOnce($($extractor,)* $($payload)?) -> A + Send + 'static,
            A: Future + Send,
            P: Payload,
            $($extractor: FromJob,)*
        {
            type Answer = A::Output;

            fn requires(_requirements: &mut Requirements) {
                $($extractor::requires(_requirements);)*
            }

            async fn ask(
                self,
                _ctx: &JobContext,
                _decode: fn(&Job) -> Result<P, JobError>,
            ) -> Result<A::Output, JobError> {
                // First, because a job that does not decode is dead even if an extractor fails too.
                $(let $value: $payload = _decode(_ctx.job())?;)?
                let answer = self(
                    $($extractor::from_job(_ctx).await.map_err(JobError::Failed)?,)*
                    $($value)?
                );
                Ok(answer.await)
            }
        }
    };
}

guard_functions!();
guard_functions!(E1);
guard_functions!(E1 E2);
guard_functions!(E1 E2 E3);
guard_functions!(E1 E2 E3 E4);
guard_functions!(E1 E2 E3 E4 E5);
guard_functions!(E1 E2 E3 E4 E5 E6);
guard_functions!(E1 E2 E3 E4 E5 E6 E7);
guard_functions!(E1 E2 E3 E4 E5 E6 E7 E8);
