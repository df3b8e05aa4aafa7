//! Extractors: handler arguments made from a job.

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::context::JobContext;
use super::outcome::JobError;
use super::state::Requirements;
use crate::error::BoxError;
use crate::model::{Job, codec};

/// A type for handler arguments before the payload.
///
/// ```
/// # use dq_core as dq;
/// struct Tenant(String);
///
/// impl dq::FromJob for Tenant {
///     async fn from_job(ctx: &dq::JobContext) -> Result<Self, dq::BoxError> {
///         Ok(Tenant(ctx.headers().get("tenant").ok_or("no tenant header")?.to_owned()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an extractor",
    label = "arguments before the last must be `dq::JobContext`, `dq::State<T>` or a type that implements `dq::FromJob`",
    note = "for a value that was given to the runner by `.state(value)`, write `dq::State<T>`: the `State` of axum or another framework is not an extractor here",
    note = "the payload is the last argument"
)]
pub trait FromJob: Sized + Send {
    /// Declares the extractor's state, so that [`RunnerBuilder::build`] fails if it is missing.
    ///
    /// [`RunnerBuilder::build`]: crate::RunnerBuilder::build
    fn requires(requirements: &mut Requirements) {
        let _ = requirements;
    }

    /// Makes the argument.
    ///
    /// # Errors
    /// Any error; it counts as a failed attempt.
    fn from_job(ctx: &JobContext) -> impl Future<Output = Result<Self, BoxError>> + Send;
}

impl FromJob for JobContext {
    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        Ok(ctx.clone())
    }
}

/// Extracts a clone of a value from the runner's `.state(value)`.
#[derive(Debug, Clone, Copy)]
pub struct State<T>(pub T);

/// A type for `State<T>`: `Clone + Send + Sync + 'static`.
///
/// The trait exists for its error message.
#[diagnostic::on_unimplemented(
    message = "`State<{Self}>` cannot be extracted: `{Self}` must be `Clone + Send + Sync + 'static`",
    label = "a handler gets a clone of the value",
    note = "derive `Clone`, or share the value: take `State<Arc<{Self}>>` and call `.state(Arc::new(value))` on the runner"
)]
pub trait SharedState: Clone + Send + Sync + 'static {}

#[diagnostic::do_not_recommend]
impl<T: Clone + Send + Sync + 'static> SharedState for T {}

impl<T: SharedState> FromJob for State<T> {
    fn requires(requirements: &mut Requirements) {
        requirements.state::<T>();
    }

    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        // A built runner has the value; a context from `JobContext::new` may lack it.
        ctx.state::<T>().cloned().map(Self).ok_or_else(|| {
            format!("there is no state of type {}", std::any::type_name::<T>()).into()
        })
    }
}

/// Extracts the encoded payload.
#[derive(Clone)]
pub struct RawPayload(pub Bytes);

impl fmt::Debug for RawPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawPayload(<{} bytes>)", self.0.len())
    }
}

impl FromJob for RawPayload {
    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        Ok(Self(ctx.raw_payload().clone()))
    }
}

/// A type for a handler's last argument: any `serde::Deserialize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the payload of a job",
    label = "the last argument is the payload and must implement `serde::Deserialize`",
    note = "derive `serde::Deserialize` and `serde::Serialize` for it; if it is an extractor, mark the argument with `#[extract]`"
)]
pub trait Payload: DeserializeOwned + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send + 'static> Payload for T {}

/// Decodes the payload. A failure makes the job dead and is not a failed attempt.
pub(super) fn decode<P: Payload>(job: &Job) -> Result<P, JobError> {
    codec::decode(&job.headers, &job.payload).map_err(|what| JobError::Undecodable(what.into()))
}
