//! Calls for many jobs.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use dq_core::QueueName;
use dq_ops::{BulkAction, BulkCount, BulkReport, JobFilter, Session, json, openapi, parse_due};
use serde::{Deserialize, Serialize};

use super::input::{queue_of, unknown_action};
use super::jobs::schedule_many;
use crate::extract::{JsonObject, Segments};
use crate::problem::{Problem, Result};

/// Which jobs to change.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BulkBody {
    /// The jobs must match all parts you set. Without any part, a change needs `all` or `expected`.
    #[serde(deserialize_with = "json::object")]
    filter: JobFilter,
    /// Take every job that the action can change. Refused together with a filter.
    all: bool,
    /// The new due time, for `reschedule`.
    #[schema(value_type = Option<openapi::Due>)]
    due: Option<String>,
    /// Only count the jobs.
    dry_run: bool,
    /// The job count you saw. Nothing changes if more jobs match now, or if too many match to
    /// count.
    #[serde(deserialize_with = "json::whole")]
    expected: Option<u64>,
}

/// How many jobs changed; with `dry_run`, how many match.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum BulkResult {
    Changed(BulkReport),
    Counted(BulkCount),
}

/// `POST /v1/queues/{queue}/jobs:{action}`
pub(crate) async fn act(
    Extension(session): Extension<Session>,
    Segments((queue, segment)): Segments<(String, String)>,
    headers: HeaderMap,
    body: JsonObject,
) -> Result<Response> {
    let queue = queue_of(&queue)?;
    let action = segment.strip_prefix("jobs:").unwrap_or_default();
    if action == "schedule" {
        let scheduled = schedule_many(&session, &queue, &headers, body.read()?).await?;
        return Ok(scheduled.into_response());
    }
    let body: BulkBody = body.read()?;
    if body.due.is_some() && action != "reschedule" && ACTIONS.contains(&action) {
        return Err(Problem::bad_request("`due` belongs to reschedule"));
    }
    let result = match action {
        "cancel" => cancel(&session, &queue, &body).await,
        "reschedule" => reschedule(&session, &queue, &body).await,
        "replay" => replay(&session, &queue, &body).await,
        "remove" => remove(&session, &queue, &body).await,
        _ => Err(unknown_action(&segment, &ACTIONS.map(|action| format!("jobs:{action}")))),
    };
    Ok(result?.into_response())
}

const ACTIONS: [&str; 5] = ["schedule", "cancel", "reschedule", "replay", "remove"];

/// Cancels all matching waiting jobs. With `dry_run`, only counts them.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs:cancel", tag = "jobs", operation_id = "cancel_jobs",
    params(("queue" = openapi::QueueName, Path)), request_body = BulkBody,
    responses((status = 200, body = BulkResult), (status = "default", body = Problem)))]
pub(crate) async fn cancel(
    session: &Session,
    queue: &QueueName,
    body: &BulkBody,
) -> Result<Json<BulkResult>> {
    body.change(session, queue, BulkAction::Cancel).await
}

/// Gives all matching waiting jobs another due time. With `dry_run`, only counts them.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs:reschedule", tag = "jobs", operation_id = "reschedule_jobs",
    params(("queue" = openapi::QueueName, Path)), request_body = BulkBody,
    responses((status = 200, body = BulkResult), (status = "default", body = Problem)))]
pub(crate) async fn reschedule(
    session: &Session,
    queue: &QueueName,
    body: &BulkBody,
) -> Result<Json<BulkResult>> {
    let due = body.due.as_deref().ok_or_else(|| Problem::bad_request("`due` is missing"))?;
    body.change(session, queue, BulkAction::Reschedule(parse_due(due)?)).await
}

/// Makes all matching dead jobs due now, with all their attempts. With `dry_run`, only counts them.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs:replay", tag = "jobs", operation_id = "replay_jobs",
    params(("queue" = openapi::QueueName, Path)), request_body = BulkBody,
    responses((status = 200, body = BulkResult), (status = "default", body = Problem)))]
pub(crate) async fn replay(
    session: &Session,
    queue: &QueueName,
    body: &BulkBody,
) -> Result<Json<BulkResult>> {
    body.change(session, queue, BulkAction::Replay).await
}

/// Removes all matching dead jobs. With `dry_run`, only counts them.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs:remove", tag = "jobs", operation_id = "remove_jobs",
    params(("queue" = openapi::QueueName, Path)), request_body = BulkBody,
    responses((status = 200, body = BulkResult), (status = "default", body = Problem)))]
pub(crate) async fn remove(
    session: &Session,
    queue: &QueueName,
    body: &BulkBody,
) -> Result<Json<BulkResult>> {
    body.change(session, queue, BulkAction::Remove).await
}

impl BulkBody {
    async fn change(
        &self,
        session: &Session,
        queue: &QueueName,
        action: BulkAction,
    ) -> Result<Json<BulkResult>> {
        if self.all && !self.filter.is_empty() {
            return Err(Problem::bad_request("the body has both `all` and a filter"));
        }
        // A lost body, or a filter full of nulls, must not take every job.
        let is_meant = self.dry_run || self.all || self.expected.is_some();
        if self.filter.is_empty() && !is_meant {
            return Err(Problem::bad_request("the body selects no jobs").remedy(
                "give a filter, the number that was counted as `expected`, or \"all\": true",
            ));
        }
        if self.dry_run {
            let count = session.count(queue, action, &self.filter).await?;
            return Ok(Json(BulkResult::Counted(count)));
        }
        let report = session.bulk(queue, action, &self.filter, self.expected).await?;
        Ok(Json(BulkResult::Changed(report)))
    }
}
