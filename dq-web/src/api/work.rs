//! Workers claim jobs.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use dq_ops::{ClaimRequest, ClaimedJobs, Session};

use crate::extract::JsonBody;
use crate::problem::{Problem, Result};

/// Claims jobs for a worker: at once if some are due, or as soon as the first is.
///
/// 204 if none is due within `wait`. If the worker closes the connection before, its jobs are handed
/// back at once.
#[utoipa::path(post, path = "/v1/claims", tag = "work", operation_id = "claim_jobs",
    request_body = ClaimRequest,
    responses((status = 200, body = ClaimedJobs), (status = 204),
        (status = "default", body = Problem)))]
pub(crate) async fn claim(
    Extension(session): Extension<Session>,
    JsonBody(request): JsonBody<ClaimRequest>,
) -> Result<Response> {
    let claimed = session.claim(&request).await?;
    Ok(match claimed.jobs.is_empty() {
        true => StatusCode::NO_CONTENT.into_response(),
        false => Json(claimed).into_response(),
    })
}
