//! Changes of many jobs.

use axum::{Extension, Json};
use dq_ops::{BulkAction, BulkCount, BulkReport, JobFilter, Session, parse_due};
use serde::{Deserialize, Serialize};

use super::input::{queue_of, unknown_action};
use crate::extract::{JsonBody, Segments};
use crate::problem::{Problem, Result};

/// Which jobs to change.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BulkBody {
    /// Which jobs: they match all parts that are set. If no part is set, a change needs `all` or
    /// `expected`.
    filter: JobFilter,
    /// Take every job that the action can change. Refused together with a filter.
    all: bool,
    /// The new due time, for `reschedule`.
    due: Option<String>,
    /// Only count the jobs.
    dry_run: bool,
    /// The number of jobs that was counted: nothing changes if more match now, or if there are too many
    /// jobs to count those that match.
    expected: Option<u64>,
}

/// The number of jobs that have changed; with `dry_run`, of those that would.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum BulkResult {
    Changed(BulkReport),
    Counted(BulkCount),
}

/// Cancels, moves, replays or removes all jobs that match: `action` is `cancel`, `reschedule`,
/// `replay` or `remove`.
///
/// With `dry_run`, the jobs are only counted.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs:{action}", tag = "jobs", operation_id = "change_jobs",
    params(("queue" = String, Path), ("action" = String, Path)), request_body = BulkBody,
    responses((status = 200, body = BulkResult), (status = "default", body = Problem)))]
pub(crate) async fn act(
    Extension(session): Extension<Session>,
    Segments((queue, segment)): Segments<(String, String)>,
    JsonBody(body): JsonBody<BulkBody>,
) -> Result<Json<BulkResult>> {
    let queue = queue_of(&queue)?;
    let name = segment.strip_prefix("jobs:").unwrap_or_default();
    let action = match (name, body.due.as_deref()) {
        ("cancel", None) => BulkAction::Cancel,
        ("replay", None) => BulkAction::Replay,
        ("remove", None) => BulkAction::Remove,
        ("reschedule", Some(due)) => BulkAction::Reschedule(parse_due(due)?),
        ("reschedule", None) => return Err(Problem::bad_request("`due` is missing")),
        ("cancel" | "replay" | "remove", Some(_)) => {
            return Err(Problem::bad_request("`due` belongs to reschedule"));
        }
        _ => {
            return Err(unknown_action(
                &segment,
                "jobs:cancel, jobs:reschedule, jobs:replay and jobs:remove",
            ));
        }
    };
    if body.all && !body.filter.is_empty() {
        return Err(Problem::bad_request("the body has both `all` and a filter"));
    }
    // A body that was lost, or a filter whose parts were null, must not take every job.
    let is_meant = body.dry_run || body.all || body.expected.is_some();
    if body.filter.is_empty() && !is_meant {
        return Err(Problem::bad_request("the body selects no jobs")
            .remedy("give a filter, the number that was counted as `expected`, or \"all\": true"));
    }
    if body.dry_run {
        let count = session.count(&queue, action, &body.filter).await?;
        return Ok(Json(BulkResult::Counted(count)));
    }
    let report = session.bulk(&queue, action, &body.filter, body.expected).await?;
    Ok(Json(BulkResult::Changed(report)))
}
