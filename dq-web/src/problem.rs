//! API errors as RFC 9457 problem details.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use dq_core::ErrorKind;
use dq_ops::OpsError;
use serde::Serialize;

/// An error, as `application/problem+json`.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub(crate) struct Problem {
    /// The kind of error as a URI reference.
    #[serde(rename = "type")]
    pub(crate) uri: String,
    /// The kind of error.
    pub(crate) title: String,
    /// The HTTP status.
    pub(crate) status: u16,
    /// What went wrong.
    pub(crate) detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

/// The remedy after a change with an unknown outcome. The store's remedy mentions ids, which an API
/// client does not choose.
const OUTCOME_UNKNOWN: &str = "the request may have taken effect: look before you repeat it; with the \
    same Idempotency-Key, a request for a new job can be repeated";

pub(crate) type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

    pub(crate) fn new(status: StatusCode, title: &str, detail: impl Into<String>) -> Self {
        Self {
            uri: format!("urn:dq:error:{}", title.replace(' ', "-")),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            remedy: None,
        }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid input", detail)
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn is_temporary(&self) -> bool {
        self.status() == StatusCode::SERVICE_UNAVAILABLE
    }
}

fn status_of(error: &OpsError) -> StatusCode {
    let store_kind = match error {
        OpsError::Forbidden { .. } | OpsError::ForeignQueue { .. } => return StatusCode::FORBIDDEN,
        OpsError::NotFound { .. }
        | OpsError::NothingToPause { .. }
        | OpsError::NoSchedule { .. } => return StatusCode::NOT_FOUND,
        OpsError::Conflict { .. } => return StatusCode::CONFLICT,
        _ => error.store_kind(),
    };
    match store_kind {
        Some(ErrorKind::InvalidInput | ErrorKind::Codec) => StatusCode::BAD_REQUEST,
        Some(ErrorKind::Unsupported) => StatusCode::NOT_IMPLEMENTED,
        Some(ErrorKind::Unavailable | ErrorKind::Closed) => StatusCode::SERVICE_UNAVAILABLE,
        // Clients and proxies repeat a request after 503, which this one must not be.
        Some(ErrorKind::OutcomeUnknown) => StatusCode::GATEWAY_TIMEOUT,
        Some(ErrorKind::Full) => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<OpsError> for Problem {
    fn from(error: OpsError) -> Self {
        let mut problem = Self::new(status_of(&error), error.kind(), error.message());
        problem.remedy = match error.store_kind() {
            Some(ErrorKind::OutcomeUnknown) => Some(OUTCOME_UNKNOWN.to_owned()),
            _ => error.remedy(),
        };
        problem
    }
}

impl From<dq_core::Error> for Problem {
    fn from(error: dq_core::Error) -> Self {
        OpsError::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::MEDIA_TYPE));
        if self.is_temporary() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // The dashboard makes a page of it.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_not_taken_effect_is_to_be_tried_again() {
        let answer_to = |kind| {
            let error = dq_core::Error::new(kind, "the connection broke").remedy("call again");
            let problem = Problem::from(error);
            (problem.remedy.clone().unwrap(), problem.into_response())
        };
        let (remedy, answer) = answer_to(ErrorKind::OutcomeUnknown);
        assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
        assert!(!answer.headers().contains_key(RETRY_AFTER));
        assert!(remedy.contains("may have taken effect"), "{remedy}");
        let (remedy, answer) = answer_to(ErrorKind::Unavailable);
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key(RETRY_AFTER));
        assert_eq!(remedy, "call again");
    }
}
