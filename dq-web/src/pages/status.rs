//! Runners, the store's problems, and the audit.

use askama::Template;
use axum::extract::State;
use axum::http::header::REFRESH;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use dq_core::Timestamp;
use dq_ops::{AuditEntry, AuditOutcome, FindingView, RunnerSummary};

use super::chrome::{Chrome, PageRequest, render};
use crate::app::App;
use crate::problem::Result;

#[derive(Template)]
#[template(path = "runners.html")]
struct RunnersPage {
    c: Chrome,
    runners: Vec<RunnerSummary>,
}

pub(super) async fn runners(request: PageRequest) -> Result<Response> {
    let runners = request.session.runners().await?;
    let c = request.chrome(request.t().runners, request.session.now().await?);
    render(StatusCode::OK, &RunnersPage { c, runners })
}

#[derive(Template)]
#[template(path = "check.html")]
struct CheckPage {
    c: Chrome,
    /// `None` while the check runs.
    findings: Option<Vec<FindingView>>,
}

pub(super) async fn check(State(app): State<App>, request: PageRequest) -> Result<Response> {
    let findings = app.check_for_page(&request.session).await;
    let is_running = findings.is_none();
    let c = request.chrome(request.t().check, Timestamp::EPOCH);
    let mut response = render(StatusCode::OK, &CheckPage { c, findings })?;
    if is_running {
        // In seconds. The header also works without scripts.
        response.headers_mut().insert(REFRESH, HeaderValue::from_static("1"));
    }
    Ok(response)
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    c: Chrome,
    entries: Vec<AuditEntry>,
}

pub(super) async fn audit(request: PageRequest) -> Result<Response> {
    let entries = request.session.audit(100)?;
    // Entries have this process's clock.
    let c = request.chrome(request.t().audit, std::time::SystemTime::now().into());
    render(StatusCode::OK, &AuditPage { c, entries })
}
