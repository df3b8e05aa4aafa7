//! Extractors that reject with problems.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use dq_core::Headers;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

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

pub(crate) struct Segments<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// Reads JSON. The error names the field that cannot be read.
fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let (path, error) = (error.path().to_string(), error.into_inner());
        match path.as_str() {
            // The whole body.
            "." => format!("the body cannot be read: {error}"),
            path => format!("the field `{path}` of the body cannot be read: {error}"),
        }
    })?;
    parser.end().map_err(|error| format!("the body cannot be read: {error}"))?;
    Ok(read)
}

/// A JSON object as body. An empty body counts as `{}`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        JsonObject::from_request(request, state).await?.read().map(Self)
    }
}

/// A JSON object as body. The path decides its type.
pub(crate) struct JsonObject(Bytes);

impl JsonObject {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        read(&self.0).map_err(Problem::bad_request)
    }
}

impl<S: Send + Sync> FromRequest<S> for JsonObject {
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
        let text = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        // The parser accepts a list and fills the fields by position.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_request("the body is not a JSON object"));
        }
        Ok(Self(text))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_error_names_its_field() {
        for (body, expected) in [
            (
                r#"{"ids":5}"#,
                "the field `ids` of the body cannot be read: invalid type: integer `5`",
            ),
            (r#"{"ids":[1,"x"]}"#, "the field `ids[1]` of the body cannot be read"),
            (r#"["ids"]"#, "the body cannot be read: invalid type: sequence"),
            (r#"{} x"#, "the body cannot be read: trailing characters"),
            (r#"{"ids""#, "cannot be read: EOF"),
        ] {
            let error = read::<BTreeMap<String, Vec<u32>>>(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }
}
