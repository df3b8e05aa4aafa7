//! Workers renew and settle the leases of claimed jobs.

use axum::{Extension, Json};
use dq_core::Timestamp;
use dq_ops::{JobResult, RenewalResult, Session, SettlementResult, WorkError};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::extract::{JsonBody, read};
use crate::problem::{Problem, Result};

/// Leases to renew.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewBody {
    /// 1 to 1,000 leases, as claims returned them.
    leases: Vec<String>,
}

/// Renewals, in the order of the request.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Renewals {
    leases: Vec<RenewalResult>,
    /// The time by the store's clock.
    #[serde(serialize_with = "text")]
    now: Timestamp,
}

/// Renews leases, each for the time that its claim asked for.
#[utoipa::path(post, path = "/v1/leases:renew", tag = "work", operation_id = "renew_leases",
    request_body = RenewBody,
    responses((status = 200, body = Renewals), (status = "default", body = Problem)))]
pub(crate) async fn renew(
    Extension(session): Extension<Session>,
    JsonBody(body): JsonBody<RenewBody>,
) -> Result<Json<Renewals>> {
    let leases = session.renew(&body.leases).await?;
    Ok(Json(Renewals { leases, now: session.work_time() }))
}

/// Results to settle.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleBody {
    /// 1 to 1,000 results.
    #[schema(value_type = Vec<JobResult>)]
    results: Vec<Box<RawValue>>,
}

/// Settlements, in the order of the request.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Settlements {
    results: Vec<SettlementResult>,
    /// The time by the store's clock.
    #[serde(serialize_with = "text")]
    now: Timestamp,
}

/// Settles leases by the outcomes of their runs.
///
/// A bad result is refused by itself, and the others count. The request can be repeated.
#[utoipa::path(post, path = "/v1/leases:settle", tag = "work", operation_id = "settle_leases",
    request_body = SettleBody,
    responses((status = 200, body = Settlements), (status = "default", body = Problem)))]
pub(crate) async fn settle(
    Extension(session): Extension<Session>,
    JsonBody(body): JsonBody<SettleBody>,
) -> Result<Json<Settlements>> {
    let read = body.results.iter().map(|result| read::<JobResult>(result.get().as_bytes()));
    let results = session.settle(read.map(|result| result.map_err(invalid)).collect()).await?;
    Ok(Json(Settlements { results, now: session.work_time() }))
}

fn invalid(detail: String) -> WorkError {
    let detail = detail.replace("the body", "the result");
    WorkError::new("invalid input".to_owned(), detail, None)
}

fn text<S: Serializer>(time: &Timestamp, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}
