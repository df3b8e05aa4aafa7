//! What a handler's arguments are made from.

use std::fmt;
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
    serde_json::from_slice(ctx.raw_payload())
        .map_err(|error| JobError::Undecodable(without_values(&error).into()))
}

/// What was expected and where, without what was found: that is the payload, which is not to be
/// seen in logs.
fn without_values(error: &serde_json::Error) -> String {
    if !error.is_data() {
        return error.to_string();
    }
    let text = error.to_string();
    match text.split_once(", expected ") {
        Some((_, expected)) => format!("expected {expected}"),
        None if text.starts_with("missing field ") => text,
        None => format!("an invalid value at line {} column {}", error.line(), error.column()),
    }
}

#[cfg(test)]
mod tests {
    use super::without_values;

    #[test]
    fn errors_say_what_was_expected_and_not_what_was_found() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Login {
            user: String,
            pin: u32,
        }
        for (payload, wanted) in [
            (r#"{"user":"bob","pin":"hunter2"}"#, "expected u32 at line 1 column 29"),
            (r#"{"user":"bob"}"#, "missing field `pin` at line 1 column 14"),
            (r#"{"hunter2":1}"#, "expected `user` or `pin` at line 1 column 10"),
            (r#"{"user":"#, "EOF while parsing a value at line 1 column 8"),
        ] {
            let error = serde_json::from_str::<Login>(payload).unwrap_err();
            assert_eq!(without_values(&error), wanted);
        }
        let custom = <serde_json::Error as serde::de::Error>::custom("hunter2 is no date");
        assert!(!without_values(&custom).contains("hunter2"));
    }
}
