//! Queues, forecasts, simulation, runners, findings, audit and events.

use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use dq_core::QueueName;
use dq_ops::{
    AuditEntry, BulkReport, DeadGroups, FindingView, Forecast, Forecasts, LimitChange, OpsError,
    Overview, QueueSummary, RunnerSummary, Session, SimulationRequest, SimulationView, openapi,
};
use serde::{Deserialize, Serialize};

use super::input::{queue_of, split_action, unknown_action, window_of};
use crate::app::{API_CHECK_TIMEOUT, App};
use crate::extract::{JsonBody, JsonObject, Params, Segments};
use crate::problem::{Problem, Result};

/// All queues at a glance, with the number of runners.
#[utoipa::path(get, path = "/v1/overview", tag = "queues", operation_id = "get_overview",
    responses((status = 200, body = Overview), (status = "default", body = Problem)))]
pub(crate) async fn overview(Extension(session): Extension<Session>) -> Result<Json<Overview>> {
    Ok(Json(session.overview().await?))
}

/// All queues, ordered by name.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", operation_id = "list_queues",
    responses((status = 200, body = Vec<QueueSummary>), (status = "default", body = Problem)))]
pub(crate) async fn queues(
    Extension(session): Extension<Session>,
) -> Result<Json<Vec<QueueSummary>>> {
    Ok(Json(session.overview().await?.queues))
}

/// One queue.
#[utoipa::path(get, path = "/v1/queues/{queue}", tag = "queues", operation_id = "get_queue",
    params(("queue" = openapi::QueueName, Path)),
    responses((status = 200, body = QueueSummary), (status = "default", body = Problem)))]
pub(crate) async fn queue(
    Extension(session): Extension<Session>,
    Segments(queue): Segments<String>,
) -> Result<Json<QueueSummary>> {
    Ok(Json(session.queue(&queue_of(&queue)?).await?))
}

/// The result of pausing, resuming, or storing a schedule.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ChangeReport {
    /// Whether this request changed something.
    pub(super) changed: bool,
}

/// The body of a purge.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PurgeRequest {
    /// The queue name again, as confirmation.
    #[schema(value_type = openapi::QueueName, required = true)]
    confirm: Option<String>,
}

pub(super) const ACTIONS: &[&str] =
    &["pause", "create-paused", "resume", "limit", "unlimit", "purge"];

/// `POST /v1/queues/{queue}:{action}`
pub(crate) async fn act(
    Extension(session): Extension<Session>,
    Segments(segment): Segments<String>,
    body: JsonObject,
) -> Result<Response> {
    let (queue, action) = split_action(&segment);
    let queue = queue_of(queue)?;
    if action == "limit" {
        return Ok(limit(&session, &queue, body.read()?).await?.into_response());
    }
    // The other actions accept the confirmation of a purge.
    let request: PurgeRequest = body.read()?;
    match action {
        "pause" => Ok(pause(&session, &queue).await?.into_response()),
        "create-paused" => Ok(create_paused(&session, &queue).await?.into_response()),
        "resume" => Ok(resume(&session, &queue).await?.into_response()),
        "unlimit" => Ok(unlimit(&session, &queue).await?.into_response()),
        "purge" => Ok(purge(&session, &queue, &request).await?.into_response()),
        _ => Err(unknown_action(action, ACTIONS)),
    }
}

/// Pauses a queue in all processes; running jobs finish.
///
/// A queue that nobody uses counts as misspelt; use `create-paused` for it.
#[utoipa::path(post, path = "/v1/queues/{queue}:pause", tag = "queues", operation_id = "pause_queue", params(("queue" = openapi::QueueName, Path)),
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn pause(session: &Session, queue: &QueueName) -> Result<Json<ChangeReport>> {
    Ok(Json(ChangeReport { changed: session.pause(queue).await? }))
}

/// Pauses a queue even if nobody uses it yet, such as before its first deployment.
#[utoipa::path(post, path = "/v1/queues/{queue}:create-paused", tag = "queues", operation_id = "create_paused_queue",
    params(("queue" = openapi::QueueName, Path)),
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn create_paused(
    session: &Session,
    queue: &QueueName,
) -> Result<Json<ChangeReport>> {
    Ok(Json(ChangeReport { changed: session.create_paused(queue).await? }))
}

/// Resumes a paused queue.
#[utoipa::path(post, path = "/v1/queues/{queue}:resume", tag = "queues", operation_id = "resume_queue", params(("queue" = openapi::QueueName, Path)),
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn resume(session: &Session, queue: &QueueName) -> Result<Json<ChangeReport>> {
    Ok(Json(ChangeReport { changed: session.resume(queue).await? }))
}

/// Sets a queue's limits for all processes together, in place of those that runners declare.
///
/// An absent field keeps the limit in force, `null` removes it.
#[utoipa::path(post, path = "/v1/queues/{queue}:limit", tag = "queues", operation_id = "limit_queue",
    params(("queue" = openapi::QueueName, Path)), request_body = LimitChange,
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn limit(
    session: &Session,
    queue: &QueueName,
    change: LimitChange,
) -> Result<Json<ChangeReport>> {
    if change == LimitChange::default() {
        return Err(Problem::bad_request("no limit is given").remedy(
            "give `max_running`, `group_max_running` or `rate`; `:unlimit` restores the declared limits",
        ));
    }
    Ok(Json(ChangeReport { changed: session.limit(queue, change).await? }))
}

/// Lets the limits count again that runners declare.
#[utoipa::path(post, path = "/v1/queues/{queue}:unlimit", tag = "queues", operation_id = "unlimit_queue",
    params(("queue" = openapi::QueueName, Path)),
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn unlimit(session: &Session, queue: &QueueName) -> Result<Json<ChangeReport>> {
    Ok(Json(ChangeReport { changed: session.unlimit(queue).await? }))
}

/// Deletes all jobs of a queue, except running jobs.
#[utoipa::path(post, path = "/v1/queues/{queue}:purge", tag = "queues", operation_id = "purge_queue", params(("queue" = openapi::QueueName, Path)),
    request_body = PurgeRequest,
    responses((status = 200, body = BulkReport), (status = "default", body = Problem)))]
pub(crate) async fn purge(
    session: &Session,
    queue: &QueueName,
    body: &PurgeRequest,
) -> Result<Json<BulkReport>> {
    let confirm = body.confirm.as_deref();
    match session.purge(queue, confirm.unwrap_or_default()).await {
        Err(OpsError::Conflict { .. }) if confirm.is_none() => {
            Err(Problem::bad_request("`confirm` is missing")
                .remedy("give the name of the queue as `confirm`: all of its jobs go"))
        }
        purged => Ok(Json(purged?)),
    }
}

/// A queue's dead jobs, grouped by error.
#[utoipa::path(get, path = "/v1/queues/{queue}/dead", tag = "queues", operation_id = "list_dead_groups", params(("queue" = openapi::QueueName, Path)),
    responses((status = 200, body = DeadGroups), (status = "default", body = Problem)))]
pub(crate) async fn dead(
    Extension(session): Extension<Session>,
    Segments(queue): Segments<String>,
) -> Result<Json<DeadGroups>> {
    Ok(Json(session.dead(&queue_of(&queue)?).await?))
}

/// The query of a forecast.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ForecastParams {
    /// How far to look ahead: `24h` by default; one minute to 366 days.
    #[param(value_type = Option<openapi::Duration>)]
    window: Option<String>,
    /// The number of steps: 24 by default; clamped to 1 to 240.
    steps: Option<u32>,
}

/// How many of a queue's jobs will be due, by time.
#[utoipa::path(get, path = "/v1/queues/{queue}/forecast", tag = "queues", operation_id = "get_forecast_of_queue",
    params(("queue" = openapi::QueueName, Path), ForecastParams),
    responses((status = 200, body = Forecast), (status = "default", body = Problem)))]
pub(crate) async fn forecast(
    Extension(session): Extension<Session>,
    Segments(queue): Segments<String>,
    Params(params): Params<ForecastParams>,
) -> Result<Json<Forecast>> {
    let window = window_of(params.window.as_deref())?;
    let queue = queue_of(&queue)?;
    Ok(Json(session.forecast(&queue, window, params.steps.unwrap_or(24) as usize).await?))
}

/// The query of the forecast of all queues.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ForecastsParams {
    /// How far to look ahead: `24h` by default; one minute to seven days.
    #[param(value_type = Option<openapi::Duration>)]
    window: Option<String>,
}

/// What is due in all queues by hour, and what the runners can do; at most 15 seconds old.
#[utoipa::path(get, path = "/v1/forecast", tag = "queues", operation_id = "get_forecast", params(ForecastsParams),
    responses((status = 200, body = Forecasts), (status = "default", body = Problem)))]
pub(crate) async fn forecasts(
    State(app): State<App>,
    Extension(session): Extension<Session>,
    Params(params): Params<ForecastsParams>,
) -> Result<Response> {
    let window = window_of(params.window.as_deref())?;
    let forecasts = app.forecasts(&session, window).await?;
    Ok(Json(&*forecasts).into_response())
}

/// Simulates the next hours on a virtual clock: how late jobs start, and when a backlog is drained.
///
/// Changes nothing. Needs the role operator.
#[utoipa::path(post, path = "/v1/simulate", tag = "operations", operation_id = "simulate", request_body = SimulationRequest,
    responses((status = 200, body = SimulationView), (status = "default", body = Problem)))]
pub(crate) async fn simulate(
    Extension(session): Extension<Session>,
    JsonBody(request): JsonBody<SimulationRequest>,
) -> Result<Json<SimulationView>> {
    Ok(Json(session.simulate(&request).await?))
}

/// The runners, ordered by name.
#[utoipa::path(get, path = "/v1/runners", tag = "operations", operation_id = "list_runners",
    responses((status = 200, body = Vec<RunnerSummary>), (status = "default", body = Problem)))]
pub(crate) async fn runners(
    Extension(session): Extension<Session>,
) -> Result<Json<Vec<RunnerSummary>>> {
    Ok(Json(session.runners().await?))
}

/// The store's problems, with their remedies.
#[utoipa::path(get, path = "/v1/check", tag = "operations", operation_id = "check",
    responses((status = 200, body = Vec<FindingView>), (status = "default", body = Problem)))]
pub(crate) async fn check(
    State(app): State<App>,
    Extension(session): Extension<Session>,
) -> Result<Json<Vec<FindingView>>> {
    let findings = app.check(&session).await;
    Ok(Json(findings.ok_or_else(|| {
        let detail = format!("the check has not ended in {} s", API_CHECK_TIMEOUT.as_secs());
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
            .remedy("try again; if it never ends, look at the store with its own tools")
    })?))
}

/// The query of the audit.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParams {
    /// Maximum number of entries: 100 by default; clamped to 1 to 1,000.
    limit: Option<u32>,
}

/// This process's last writes, latest first. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit", tag = "operations", operation_id = "list_audit_entries", params(AuditParams),
    responses((status = 200, body = Vec<AuditEntry>), (status = "default", body = Problem)))]
pub(crate) async fn audit(
    Extension(session): Extension<Session>,
    Params(params): Params<AuditParams>,
) -> Result<Json<Vec<AuditEntry>>> {
    Ok(Json(session.audit(params.limit.unwrap_or(100) as usize)?))
}

/// Server-sent `overview` events: the overview without `at` and `oldest_ready_ms`, first the
/// current state, then each change. Without a stop signal from the server, each response ends after
/// 15 s: connect again.
#[utoipa::path(get, path = "/v1/events", tag = "operations", operation_id = "get_events",
    responses((status = 200, content_type = "text/event-stream"), (status = "default", body = Problem)))]
pub(crate) async fn events(State(app): State<App>) -> Response {
    // Proxies close idle streams.
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(app.live().events()).keep_alive(keep_alive).into_response()
}
