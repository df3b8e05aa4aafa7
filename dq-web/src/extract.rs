//! Extractors whose rejections are problems.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use dq_core::Headers;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The query of an address.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Self(query))
            .map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// The parameters in the path of an address.
pub(crate) struct Segments<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// A body that is a JSON object. An empty one counts as `{}`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let content_type = request.headers().get(CONTENT_TYPE);
        let content_type = content_type.map(|value| value.to_str().unwrap_or_default().to_owned());
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Problem::bad_request(error.body_text()))?;
        if !bytes.is_empty() && !content_type.as_deref().is_some_and(Headers::is_json) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "invalid input",
                "the body is not declared as JSON",
            )
            .remedy("send the header content-type: application/json"));
        }
        let text = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
        // Of a list, the parser would take the fields by their position.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_request("the body is not a JSON object"));
        }
        serde_json::from_slice(text)
            .map(Self)
            .map_err(|error| Problem::bad_request(format!("the body cannot be read: {error}")))
    }
}
