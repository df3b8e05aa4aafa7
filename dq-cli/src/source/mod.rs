//! The HTTP API as the commands use it: of a server, or of an open store within this process.

mod api;
mod connecting;
mod local;
mod open;
mod remote;

use axum::http::{StatusCode, request::Builder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{Failure, Result};

pub(crate) use local::Local;
#[cfg(feature = "redis")]
pub(crate) use open::open_store;
pub(crate) use open::{open, runtime};
use remote::Remote;

pub(crate) enum Source {
    Store(Local),
    Server(Remote),
}

impl Source {
    /// Sends a request and parses the response, unless it is a problem.
    fn send<T: DeserializeOwned>(&self, request: Request<'_>) -> Result<T> {
        match self {
            Self::Store(local) => local.send(&request),
            Self::Server(remote) => remote.send(&request),
        }
    }

    /// Closes the connection cleanly.
    pub(crate) fn close(&self) -> dq_core::Result<()> {
        match self {
            Self::Store(local) => local.close(),
            Self::Server(_) => Ok(()),
        }
    }
}

/// A request to `/v1`.
struct Request<'a> {
    method: &'static str,
    /// The path after `/v1/`.
    path: String,
    body: Option<Value>,
    idempotency_key: Option<&'a str>,
    /// Whether it changes the store. If a change gets no response, its outcome is unknown.
    changes: bool,
    /// Whether it may exceed the usual timeout.
    takes_long: bool,
    /// Whether status 409 carries a success body, because the job is running.
    has_body_if_running: bool,
}

impl<'a> Request<'a> {
    fn new(method: &'static str, path: impl Into<String>, body: Option<Value>) -> Self {
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

    fn post(path: impl Into<String>, body: Value) -> Self {
        Self::new("POST", path, Some(body))
    }

    /// A POST that only counts or calculates.
    fn query(path: impl Into<String>, body: Value) -> Self {
        Self { changes: false, ..Self::post(path, body) }.takes_long()
    }

    fn idempotency_key(self, name: Option<&'a str>) -> Self {
        Self { idempotency_key: name, ..self }
    }

    fn takes_long(self) -> Self {
        Self { takes_long: true, ..self }
    }

    fn has_body_if_running(self) -> Self {
        Self { has_body_if_running: true, ..self }
    }

    /// Starts the HTTP request.
    fn head(&self, base: &str) -> Builder {
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

    fn succeeds_with(&self, status: StatusCode) -> bool {
        status.is_success() || self.has_body_if_running && status == StatusCode::CONFLICT
    }
}

#[derive(Deserialize)]
struct Problem {
    title: String,
    detail: String,
    #[serde(default)]
    remedy: Option<String>,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Error { kind: problem.title, message: problem.detail, remedy: problem.remedy }
    }
}
