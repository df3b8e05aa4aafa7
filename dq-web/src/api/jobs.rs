//! Jobs: list, schedule, inspect, change.

use std::collections::BTreeMap;

use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dq_core::{Due, Headers, JobState, OnConflict, OnRunning, QueueName, Target, TraceContext};
use dq_ops::{
    JobDetail, JobPage, JobQuery, Moved, ScheduleRequest, ScheduleResult, ScheduledJob, Session,
    Timeline, json, openapi, parse_due, parse_timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::input::{job_of, queue_of, split_action, unknown_action};
use crate::extract::{JsonBody, Params, Segments};
use crate::problem::{Problem, Result};

/// The query of a listing.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// `scheduled` (the default), `ready`, `running`, `dead` or `ended`.
    #[param(value_type = Option<openapi::JobState>)]
    state: Option<JobState>,
    /// Only jobs whose key begins with this text.
    #[param(value_type = Option<openapi::FilterText>)]
    key_prefix: Option<String>,
    /// Only jobs due at this time or later.
    #[param(value_type = Option<String>, format = "date-time")]
    due_from: Option<String>,
    /// Only jobs due before this time.
    #[param(value_type = Option<String>, format = "date-time")]
    due_before: Option<String>,
    /// Only jobs whose error or reason contains this text.
    #[param(value_type = Option<openapi::FilterText>)]
    error: Option<String>,
    /// Only jobs whose payload contains this text; needs the role reader.
    #[param(value_type = Option<openapi::SearchText>)]
    contains: Option<String>,
    /// The `next` value of the previous page.
    #[param(value_type = Option<openapi::Cursor>)]
    after: Option<String>,
    /// Maximum number of jobs per page: 50 by default; clamped to 1 to 500.
    limit: Option<u32>,
    /// The order, `asc` (the default) or `desc`: by due time; running jobs by lease end, dead jobs
    /// by time of death, ended jobs by end time.
    #[param(value_type = Option<openapi::Order>)]
    order: Option<String>,
}

impl ListParams {
    fn query(self) -> Result<JobQuery> {
        let time = |text: Option<String>| text.as_deref().map(parse_timestamp).transpose();
        let mut query = JobQuery::new(self.state.unwrap_or(JobState::Scheduled));
        query.filter.key_prefix = self.key_prefix;
        query.filter.due_from = time(self.due_from)?;
        query.filter.due_before = time(self.due_before)?;
        query.filter.error = self.error;
        query.contains = self.contains;
        query.after = self.after;
        query.limit = self.limit.map_or(query.limit, |limit| limit as usize);
        query.descending = match self.order.as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(other) => {
                let message = format!("`order` is {other:?}, neither asc nor desc");
                return Err(Problem::bad_request(message));
            }
        };
        Ok(query)
    }
}

/// One page of a queue's jobs in one state.
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs", tag = "jobs", operation_id = "list_jobs",
    params(("queue" = openapi::QueueName, Path), ListParams),
    responses((status = 200, body = JobPage), (status = "default", body = Problem)))]
pub(crate) async fn list(
    Extension(session): Extension<Session>,
    Segments(queue): Segments<String>,
    Params(params): Params<ListParams>,
) -> Result<Json<JobPage>> {
    Ok(Json(session.jobs(&queue_of(&queue)?, &params.query()?).await?))
}

/// A job to schedule.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewJobBody {
    /// The payload as JSON; `null` is a payload too.
    #[serde(deserialize_with = "json::present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload in any other format.
    #[schema(value_type = Option<openapi::Base64>)]
    payload_base64: Option<String>,
    /// The MIME type of `payload_base64`; `application/octet-stream` by default.
    content_type: Option<String>,
    /// When the job is due: a delay such as `15m`, a time such as `2027-01-31T10:00:00Z`, or `now`
    /// (the default).
    #[schema(value_type = Option<openapi::Due>)]
    due: Option<String>,
    /// Your name for the job, by which you find, change and cancel it. At most one waiting or
    /// running job per queue has it.
    #[schema(value_type = Option<openapi::JobKey>)]
    key: Option<String>,
    /// A group, such as a customer's, of which a queue with `group_max_running` runs a limited number
    /// of jobs at once.
    #[schema(value_type = Option<openapi::JobGroup>)]
    group: Option<String>,
    /// If a waiting job has the key: `keep` (the default), `replace`, `earliest` or `latest`.
    #[schema(value_type = openapi::OnConflict)]
    on_conflict: OnConflict,
    /// If a running job has the key: `refuse` (the default) or `detach`.
    #[schema(value_type = openapi::OnRunning)]
    on_running: OnRunning,
    /// More headers; `content-type` has its own field.
    #[schema(value_type = BTreeMap<openapi::JobKey, String>)]
    headers: BTreeMap<String, String>,
    /// Maximum number of attempts; by default, the queue's setting.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "json::whole")]
    max_attempts: Option<u32>,
    /// A name of the job, by which the request can be repeated.
    #[schema(value_type = Option<openapi::IdempotencyKey>)]
    idempotency_key: Option<String>,
    /// How long the store remembers the id after the job ends, such as `7d`. By default not at all,
    /// or `1d` with an idempotency key.
    #[schema(value_type = Option<openapi::Duration>)]
    remember: Option<String>,
}

impl NewJobBody {
    fn request(self, headers: &HeaderMap) -> Result<ScheduleRequest> {
        let (payload, content_type) = match (self.payload, self.payload_base64) {
            (Some(json), None) if self.content_type.is_none() => {
                (json.get().as_bytes().to_vec(), "application/json".to_owned())
            }
            (None, Some(encoded)) => {
                let payload = STANDARD.decode(encoded).map_err(|error| {
                    Problem::bad_request(format!("`payload_base64` is not Base64: {error}"))
                        .remedy("encode it by the standard alphabet, with padding")
                })?;
                let content_type = self.content_type;
                (payload, content_type.unwrap_or_else(|| "application/octet-stream".to_owned()))
            }
            _ => {
                return Err(Problem::bad_request(
                    "the body has neither `payload` alone nor `payload_base64` alone",
                )
                .remedy("`content_type` belongs to `payload_base64`; `payload` is JSON"));
            }
        };
        let mut request = ScheduleRequest::new(payload);
        request.content_type = content_type;
        request.due = self.due.as_deref().map_or(Ok(Due::NOW), parse_due)?;
        request.key = self.key;
        request.group = self.group;
        request.on_conflict = self.on_conflict;
        request.on_running = self.on_running;
        request.headers = self.headers;
        if let Some(trace) = headers.get(Headers::TRACEPARENT).and_then(|value| value.to_str().ok())
            && let Ok(trace) = trace.parse::<TraceContext>()
        {
            let name = Headers::TRACEPARENT.to_owned();
            request.headers.entry(name).or_insert_with(|| trace.to_string());
        }
        request.max_attempts = self.max_attempts;
        request.remember = self.remember;
        request.idempotency_key = self.idempotency_key;
        Ok(request)
    }
}

/// Jobs to schedule in one call.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJobsBody {
    /// The jobs: at most 1,000, and with their payloads 2 MB.
    #[serde(deserialize_with = "json::objects")]
    #[schema(max_items = 1000)]
    jobs: Vec<NewJobBody>,
}

/// The result of each job, in their order.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ScheduledJobs {
    results: Vec<ScheduledJob>,
}

/// Schedules up to 1,000 jobs.
///
/// One invalid job prevents all. After an error of the store, some may be stored: repeat the request, whose
/// jobs have each an `idempotency_key`.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs:schedule", tag = "jobs", operation_id = "schedule_jobs",
    params(("queue" = openapi::QueueName, Path),
        ("traceparent" = Option<String>, Header, description = "The trace that the jobs continue, as W3C Trace Context defines it")),
    request_body = NewJobsBody,
    responses((status = 200, body = ScheduledJobs), (status = "default", body = Problem)))]
pub(crate) async fn schedule_many(
    session: &Session,
    queue: &QueueName,
    headers: &HeaderMap,
    body: NewJobsBody,
) -> Result<Json<ScheduledJobs>> {
    if headers.contains_key("idempotency-key") {
        return Err(Problem::bad_request("the header Idempotency-Key would name several jobs")
            .remedy("give each job an `idempotency_key`"));
    }
    let requests = body.jobs.into_iter().map(|job| job.request(headers));
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let results = session.schedule_many(queue, requests).await?;
    Ok(Json(ScheduledJobs { results }))
}

/// Schedules a job.
///
/// 201 if the job is stored, by this request or an earlier one with the same `Idempotency-Key`. 200
/// if another job has the key, or if the job from an earlier request with the same
/// `Idempotency-Key` has ended. 409 if the job with the key is running. The job continues the trace
/// in the request's `traceparent`, unless its own headers have one.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs", tag = "jobs", operation_id = "schedule_job",
    params(("queue" = openapi::QueueName, Path),
        ("Idempotency-Key" = Option<openapi::IdempotencyKey>, Header, description = "A name of the request, by which it can be repeated"),
        ("traceparent" = Option<String>, Header, description = "The trace that the job continues, as W3C Trace Context defines it")),
    request_body = NewJobBody,
    responses((status = 201, body = ScheduledJob), (status = 200, body = ScheduledJob),
        (status = 409, body = ScheduledJob), (status = "default", body = Problem)))]
pub(crate) async fn schedule(
    Extension(session): Extension<Session>,
    Segments(queue): Segments<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NewJobBody>,
) -> Result<Response> {
    let queue = queue_of(&queue)?;
    if body.idempotency_key.is_some() {
        return Err(Problem::bad_request("`idempotency_key` is for jobs:schedule")
            .remedy("name the request by the header Idempotency-Key"));
    }
    let mut request = body.request(&headers)?;
    request.idempotency_key = headers
        .get("idempotency-key")
        .map(|value| value.to_str().map(str::to_owned))
        .transpose()
        .map_err(|_| {
            Problem::bad_request("the header Idempotency-Key is not ASCII")
                .remedy("choose visible ASCII characters")
        })?;
    let scheduled = session.schedule(&queue, request).await?;
    // Relative to the request's address, so that it works behind any proxy.
    let location = format!("jobs/{}", scheduled.id);
    Ok((status_of(&scheduled), [(LOCATION, location)], Json(scheduled)).into_response())
}

pub(super) fn status_of(scheduled: &ScheduledJob) -> StatusCode {
    match scheduled.result {
        ScheduleResult::Created | ScheduleResult::Replaced => StatusCode::CREATED,
        ScheduleResult::AlreadyRunning => StatusCode::CONFLICT,
        _ => StatusCode::OK,
    }
}

/// One job. Payload and headers need the role reader.
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs/{job}", tag = "jobs", operation_id = "get_job",
    params(("queue" = openapi::QueueName, Path),
        ("job" = openapi::JobTarget, Path)),
    responses((status = 200, body = JobDetail), (status = "default", body = Problem)))]
pub(crate) async fn get(
    Extension(session): Extension<Session>,
    Segments((queue, job)): Segments<(String, String)>,
) -> Result<Json<JobDetail>> {
    Ok(Json(session.job(&queue_of(&queue)?, &job_of(&job)?).await?))
}

/// What happened to a job, and why it does not run now.
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs/{job}/timeline", tag = "jobs", operation_id = "get_job_timeline",
    params(("queue" = openapi::QueueName, Path), ("job" = openapi::JobTarget, Path)),
    responses((status = 200, body = Timeline), (status = "default", body = Problem)))]
pub(crate) async fn timeline(
    Extension(session): Extension<Session>,
    Segments((queue, job)): Segments<(String, String)>,
) -> Result<Json<Timeline>> {
    Ok(Json(session.timeline(&queue_of(&queue)?, &job_of(&job)?).await?))
}

/// A change of a job.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchBody {
    /// The new due time: a delay such as `15m`, a time such as `2027-01-31T10:00:00Z`, or `now`.
    #[schema(value_type = openapi::Due)]
    due: String,
}

/// Changes the due time of a waiting job.
#[utoipa::path(patch, path = "/v1/queues/{queue}/jobs/{job}", tag = "jobs", operation_id = "reschedule_job",
    params(("queue" = openapi::QueueName, Path), ("job" = openapi::JobTarget, Path)), request_body = PatchBody,
    responses((status = 200, body = Moved), (status = "default", body = Problem)))]
pub(crate) async fn reschedule(
    Extension(session): Extension<Session>,
    Segments((queue, job)): Segments<(String, String)>,
    JsonBody(body): JsonBody<PatchBody>,
) -> Result<Json<Moved>> {
    let due = parse_due(&body.due)?;
    Ok(Json(session.reschedule(&queue_of(&queue)?, &job_of(&job)?, due).await?))
}

/// What happened to a job.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobChange {
    Cancelled,
    Replayed,
    Removed,
}

/// The result of a job change.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ActionReport {
    /// What happened: `cancelled`, `replayed` or `removed`.
    result: JobChange,
}

/// Cancels a waiting job.
#[utoipa::path(delete, path = "/v1/queues/{queue}/jobs/{job}", tag = "jobs", operation_id = "cancel_job",
    params(("queue" = openapi::QueueName, Path), ("job" = openapi::JobTarget, Path)),
    responses((status = 200, body = ActionReport), (status = "default", body = Problem)))]
pub(crate) async fn cancel(
    Extension(session): Extension<Session>,
    Segments((queue, job)): Segments<(String, String)>,
) -> Result<Json<ActionReport>> {
    session.cancel(&queue_of(&queue)?, &job_of(&job)?).await?;
    Ok(Json(ActionReport { result: JobChange::Cancelled }))
}

/// The body of an action without fields. A field is refused, such as a due time for `:run`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoFields {}

pub(super) const ACTIONS: &[&str] = &["run", "replay", "remove"];

/// `POST /v1/queues/{queue}/jobs/{job}:{action}`
pub(crate) async fn act(
    Extension(session): Extension<Session>,
    Segments((queue, segment)): Segments<(String, String)>,
    JsonBody(NoFields {}): JsonBody<NoFields>,
) -> Result<Response> {
    let (job, action) = split_action(&segment);
    let (queue, job) = (queue_of(&queue)?, job_of(job)?);
    match action {
        "run" => Ok(run(&session, &queue, &job).await?.into_response()),
        "replay" => Ok(replay(&session, &queue, &job).await?.into_response()),
        "remove" => Ok(remove(&session, &queue, &job).await?.into_response()),
        _ => Err(unknown_action(action, ACTIONS)),
    }
}

/// Makes a waiting job due now.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/{job}:run", tag = "jobs", operation_id = "run_job",
    params(("queue" = openapi::QueueName, Path), ("job" = openapi::JobTarget, Path)),
    responses((status = 200, body = Moved), (status = "default", body = Problem)))]
pub(crate) async fn run(session: &Session, queue: &QueueName, job: &Target) -> Result<Json<Moved>> {
    Ok(Json(session.run_now(queue, job).await?))
}

/// Makes a dead job due now, with all its attempts.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/{job}:replay", tag = "jobs", operation_id = "replay_job",
    params(("queue" = openapi::QueueName, Path), ("job" = openapi::JobId, Path)),
    responses((status = 200, body = ActionReport), (status = "default", body = Problem)))]
pub(crate) async fn replay(
    session: &Session,
    queue: &QueueName,
    job: &Target,
) -> Result<Json<ActionReport>> {
    session.replay(queue, job).await?;
    Ok(Json(ActionReport { result: JobChange::Replayed }))
}

/// Removes a dead job.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/{job}:remove", tag = "jobs", operation_id = "remove_job",
    params(("queue" = openapi::QueueName, Path), ("job" = openapi::JobId, Path)),
    responses((status = 200, body = ActionReport), (status = "default", body = Problem)))]
pub(crate) async fn remove(
    session: &Session,
    queue: &QueueName,
    job: &Target,
) -> Result<Json<ActionReport>> {
    session.remove(queue, job).await?;
    Ok(Json(ActionReport { result: JobChange::Removed }))
}
