//! Schedules: list, inspect, store, change.

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use dq_ops::{
    BackfillReport, ScheduleDefinition, ScheduleDetail, ScheduleSummary, ScheduledJob, Session,
    openapi, parse_schedule, parse_timestamp,
};
use serde::{Deserialize, Serialize};

use super::input::{split_action, unknown_action};
use super::jobs::status_of;
use super::queues::ChangeReport;
use crate::extract::{JsonBody, Params, Segments};
use crate::problem::{Problem, Result};

/// All schedules, the next due first.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", operation_id = "list_schedules",
    responses((status = 200, body = Vec<ScheduleSummary>), (status = "default", body = Problem)))]
pub(crate) async fn list(
    Extension(session): Extension<Session>,
) -> Result<Json<Vec<ScheduleSummary>>> {
    Ok(Json(session.schedules().await?))
}

/// The query of a schedule.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NextParams {
    /// How many next occurrences to return: 5 by default; clamped to 100.
    next: Option<u32>,
}

/// One schedule with its next occurrences. The payload needs the role reader.
#[utoipa::path(get, path = "/v1/schedules/{schedule}", tag = "schedules", operation_id = "get_schedule",
    params(("schedule" = openapi::ScheduleName, Path), NextParams),
    responses((status = 200, body = ScheduleDetail), (status = "default", body = Problem)))]
pub(crate) async fn get(
    Extension(session): Extension<Session>,
    Segments(schedule): Segments<String>,
    Params(params): Params<NextParams>,
) -> Result<Json<ScheduleDetail>> {
    let name = parse_schedule(&schedule)?;
    Ok(Json(session.recurring(&name, params.next.unwrap_or(5) as usize).await?))
}

/// Stores a schedule, or replaces it.
#[utoipa::path(put, path = "/v1/schedules/{schedule}", tag = "schedules", operation_id = "put_schedule",
    params(("schedule" = openapi::ScheduleName, Path)), request_body = ScheduleDefinition,
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn put(
    Extension(session): Extension<Session>,
    Segments(schedule): Segments<String>,
    JsonBody(definition): JsonBody<ScheduleDefinition>,
) -> Result<Json<ChangeReport>> {
    let name = parse_schedule(&schedule)?;
    Ok(Json(ChangeReport { changed: session.put_schedule(&name, &definition).await? }))
}

/// What happened to a schedule.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScheduleChange {
    /// The next occurrence is left out.
    Skipped,
    Removed,
}

/// The result of a schedule change.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ScheduleReport {
    /// What happened.
    result: ScheduleChange,
}

/// Removes a schedule. Jobs of earlier occurrences still run.
#[utoipa::path(delete, path = "/v1/schedules/{schedule}", tag = "schedules", operation_id = "remove_schedule",
    params(("schedule" = openapi::ScheduleName, Path)),
    responses((status = 200, body = ScheduleReport), (status = "default", body = Problem)))]
pub(crate) async fn remove(
    Extension(session): Extension<Session>,
    Segments(schedule): Segments<String>,
) -> Result<Json<ScheduleReport>> {
    session.remove_schedule(&parse_schedule(&schedule)?).await?;
    Ok(Json(ScheduleReport { result: ScheduleChange::Removed }))
}

/// The body of a backfill.
// `act` reads every action's body as this type; the others need no field.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BackfillRequest {
    /// Only occurrences after this time.
    #[schema(format = "date-time", required = true)]
    after: String,
    /// Only occurrences until this time.
    #[schema(format = "date-time", required = true)]
    until: String,
}

pub(super) const ACTIONS: &[&str] = &["pause", "resume", "skip-next", "run", "backfill"];

/// `POST /v1/schedules/{schedule}:{action}`
pub(crate) async fn act(
    Extension(session): Extension<Session>,
    Segments(segment): Segments<String>,
    JsonBody(body): JsonBody<BackfillRequest>,
) -> Result<Response> {
    let (schedule, action) = split_action(&segment);
    let name = parse_schedule(schedule)?;
    match action {
        "pause" => Ok(pause(&session, &name).await?.into_response()),
        "resume" => Ok(resume(&session, &name).await?.into_response()),
        "skip-next" => Ok(skip_next(&session, &name).await?.into_response()),
        "run" => run(&session, &name).await,
        "backfill" => Ok(backfill(&session, &name, &body).await?.into_response()),
        _ => Err(unknown_action(action, ACTIONS)),
    }
}

/// Pauses a schedule. Occurrences during the pause create no jobs, and are not caught up.
#[utoipa::path(post, path = "/v1/schedules/{schedule}:pause", tag = "schedules", operation_id = "pause_schedule",
    params(("schedule" = openapi::ScheduleName, Path)),
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn pause(session: &Session, name: &str) -> Result<Json<ChangeReport>> {
    Ok(Json(ChangeReport { changed: session.pause_schedule(name).await? }))
}

/// Resumes a paused schedule with its next occurrence.
#[utoipa::path(post, path = "/v1/schedules/{schedule}:resume", tag = "schedules", operation_id = "resume_schedule",
    params(("schedule" = openapi::ScheduleName, Path)),
    responses((status = 200, body = ChangeReport), (status = "default", body = Problem)))]
pub(crate) async fn resume(session: &Session, name: &str) -> Result<Json<ChangeReport>> {
    Ok(Json(ChangeReport { changed: session.resume_schedule(name).await? }))
}

/// Skips the schedule's next occurrence.
#[utoipa::path(post, path = "/v1/schedules/{schedule}:skip-next", tag = "schedules", operation_id = "skip_next_occurrence",
    params(("schedule" = openapi::ScheduleName, Path)),
    responses((status = 200, body = ScheduleReport), (status = "default", body = Problem)))]
pub(crate) async fn skip_next(session: &Session, name: &str) -> Result<Json<ScheduleReport>> {
    session.skip_next(name).await?;
    Ok(Json(ScheduleReport { result: ScheduleChange::Skipped }))
}

/// Schedules one of the schedule's jobs now, beside its occurrences.
///
/// 201 if it is stored. 200 if a job of the schedule waits and jobs must not overlap; 409 if it
/// runs.
#[utoipa::path(post, path = "/v1/schedules/{schedule}:run", tag = "schedules", operation_id = "run_schedule",
    params(("schedule" = openapi::ScheduleName, Path)),
    responses((status = 201, body = ScheduledJob), (status = 200, body = ScheduledJob),
        (status = 409, body = ScheduledJob), (status = "default", body = Problem)))]
pub(crate) async fn run(session: &Session, name: &str) -> Result<Response> {
    let scheduled = session.run_schedule(name).await?;
    Ok((status_of(&scheduled), Json(scheduled)).into_response())
}

/// Schedules past occurrences now. A range with more than 1,000 occurrences is refused.
#[utoipa::path(post, path = "/v1/schedules/{schedule}:backfill", tag = "schedules", operation_id = "backfill_schedule",
    params(("schedule" = openapi::ScheduleName, Path)), request_body = BackfillRequest,
    responses((status = 200, body = BackfillReport), (status = "default", body = Problem)))]
pub(crate) async fn backfill(
    session: &Session,
    name: &str,
    body: &BackfillRequest,
) -> Result<Json<BackfillReport>> {
    let (after, until) = (parse_timestamp(&body.after)?, parse_timestamp(&body.until)?);
    Ok(Json(session.backfill(name, after, until).await?))
}
