//! What a handler's arguments are made from.

use std::future::Future;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{JobContext, JobError, Requirements};
use crate::error::BoxError;
use crate::model::Headers;

/// A type that can stand before the payload among a handler's arguments.
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
    label = "arguments before the last must be `JobContext`, `State<T>` or a type that implements `dq::FromJob`",
    note = "the payload is the last argument"
)]
pub trait FromJob: Sized + Send {
    /// Names the state this needs, so that its absence is found when the runner is built.
    fn requires(requirements: &mut Requirements) {
        let _ = requirements;
    }

    /// Makes the argument. An error counts as a failed attempt.
    fn from_job(ctx: &JobContext) -> impl Future<Output = Result<Self, BoxError>> + Send;
}

impl FromJob for JobContext {
    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        Ok(ctx.clone())
    }
}

/// A clone of a value that was given to the runner by `.state(value)`.
#[derive(Debug, Clone, Copy)]
pub struct State<T>(pub T);

impl<T: Clone + Send + Sync + 'static> FromJob for State<T> {
    fn requires(requirements: &mut Requirements) {
        requirements.state::<T>();
    }

    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        // The runner refuses to be built without it; this is reached only by a context made by
        // hand.
        ctx.state::<T>().cloned().map(Self).ok_or_else(|| {
            format!("no state of type {} was given", std::any::type_name::<T>()).into()
        })
    }
}

/// The payload's bytes as the store kept them.
#[derive(Debug, Clone)]
pub struct RawPayload(pub Bytes);

impl FromJob for RawPayload {
    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        Ok(Self(ctx.raw_payload().clone()))
    }
}

/// A type that a handler can take as its last argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the payload of a job",
    label = "the last argument is the payload and must implement `serde::Deserialize`",
    note = "derive `serde::Deserialize` and `serde::Serialize` for it; if it is an extractor, mark the argument with `#[extract]`"
)]
pub trait Payload: DeserializeOwned + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + Send + 'static> Payload for T {}

/// MIME type of payloads that this framework encodes.
const JSON: &str = "application/json";

/// Decodes the payload of a job; an error is the job's death, not a failed attempt.
pub(crate) fn decode<P: Payload>(ctx: &JobContext) -> Result<P, JobError> {
    if let Some(other) = ctx.headers().get(Headers::CONTENT_TYPE).filter(|kind| *kind != JSON) {
        return Err(JobError::Undecodable(
            format!("its content type is {other:?}; this handler takes {JSON}").into(),
        ));
    }
    serde_json::from_slice(ctx.raw_payload()).map_err(|error| JobError::Undecodable(error.into()))
}
