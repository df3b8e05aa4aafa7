//! Requests to the HTTP API, and its errors.

use axum::http::{StatusCode, request::Builder};
use serde::Deserialize;
use serde_json::Value;

use crate::failure::Failure;

/// A request to `/v1`.
pub(super) struct Request<'a> {
    pub(super) method: &'static str,
    /// The path after `/v1/`.
    pub(super) path: String,
    pub(super) body: Option<Value>,
    pub(super) idempotency_key: Option<&'a str>,
    /// Whether it changes the store. If a change gets no response, its outcome is unknown.
    pub(super) changes: bool,
    /// Whether it may exceed the usual timeout.
    pub(super) takes_long: bool,
    /// Whether status 409 carries a success body, because the job is running.
    pub(super) has_body_if_running: bool,
}

impl<'a> Request<'a> {
    pub(super) fn new(method: &'static str, path: impl Into<String>, body: Option<Value>) -> Self {
        Self {
            method,
            path: path.into(),
            body,
            idempotency_key: None,
            changes: method != "GET",
            takes_long: false,
            has_body_if_running: false,
        }
    }

    pub(super) fn post(path: impl Into<String>, body: Value) -> Self {
        Self::new("POST", path, Some(body))
    }

    /// A POST that only counts or calculates.
    pub(super) fn query(path: impl Into<String>, body: Value) -> Self {
        Self { changes: false, ..Self::post(path, body) }.takes_long()
    }

    pub(super) fn idempotency_key(self, name: Option<&'a str>) -> Self {
        Self { idempotency_key: name, ..self }
    }

    pub(super) fn takes_long(self) -> Self {
        Self { takes_long: true, ..self }
    }

    pub(super) fn has_body_if_running(self) -> Self {
        Self { has_body_if_running: true, ..self }
    }

    pub(super) fn head(&self, base: &str) -> Builder {
        let uri = format!("{base}/v1/{}", self.path);
        let mut head = axum::http::Request::builder().method(self.method).uri(uri);
        if let Some(name) = self.idempotency_key {
            head = head.header("idempotency-key", name);
        }
        match self.body {
            Some(_) => head.header("content-type", "application/json"),
            None => head,
        }
    }

    pub(super) fn succeeds_with(&self, status: StatusCode) -> bool {
        status.is_success() || self.has_body_if_running && status == StatusCode::CONFLICT
    }
}

#[derive(Deserialize)]
pub(super) struct Problem {
    pub(super) title: String,
    detail: String,
    #[serde(default)]
    remedy: Option<String>,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Error { kind: problem.title, message: problem.detail, remedy: problem.remedy }
    }
}
