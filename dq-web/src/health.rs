//! Probes for orchestrators, which need no authentication and return no data.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::app::App;
use crate::problem::{Problem, Result};

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

/// Answers without asking the store. Needs no authentication.
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "get_health", security(()),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Problem)))]
pub(crate) async fn healthz() -> &'static str {
    "ok"
}

/// Answers 200 if the store answers within a second and the server is not shutting down, else 503.
/// Needs no authentication.
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "get_readiness", security(()),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Problem)))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<&'static str> {
    let problem = |detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
    if app.readiness().is_stopping() {
        return Err(problem("the server is shutting down"));
    }
    match app.readiness().has_answered(app.ops().dq()).await {
        true => Ok("ok"),
        // The store's error stays private, because anybody may ask.
        false => {
            Err(problem("the store does not answer").remedy("the check of the store says why"))
        }
    }
}
