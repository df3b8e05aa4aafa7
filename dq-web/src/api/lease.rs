//! Workers renew and settle the leases of claimed jobs.

use axum::{Extension, Json};
use dq_core::Timestamp;
use dq_ops::{JobResult, RenewalResult, Session, SettlementResult, json};
use serde::{Deserialize, Serialize, Serializer};

use crate::extract::JsonBody;
use crate::problem::{Problem, Result};

/// Leases to renew.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewBody {
    /// 1 to 1,000 leases, as claims returned them.
    #[schema(min_items = 1, max_items = 1000)]
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
    #[serde(deserialize_with = "json::objects")]
    #[schema(min_items = 1, max_items = 1000)]
    results: Vec<JobResult>,
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
/// A result that does not count is refused by itself, and the others count. The request can be repeated.
#[utoipa::path(post, path = "/v1/leases:settle", tag = "work", operation_id = "settle_leases",
    request_body = SettleBody,
    responses((status = 200, body = Settlements), (status = "default", body = Problem)))]
pub(crate) async fn settle(
    Extension(session): Extension<Session>,
    JsonBody(body): JsonBody<SettleBody>,
) -> Result<Json<Settlements>> {
    let results = session.settle(body.results.iter()).await?;
    Ok(Json(Settlements { results, now: session.work_time() }))
}

fn text<S: Serializer>(time: &Timestamp, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}
