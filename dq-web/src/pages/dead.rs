//! Dead jobs, grouped by error.

use std::cmp::Reverse;

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{JobState, QueueName};
use dq_ops::{DeadGroup, QueueSummary};

use super::chrome::{Chrome, PageRequest, render};
use crate::problem::Result;

/// Maximum number of queues on the page, because each costs a listing.
const MAX_QUEUES: usize = 20;

/// Minimum search length in bytes for changing a whole group. A shorter text also matches other
/// errors.
const MIN_SEARCH: usize = 8;

#[derive(Template)]
#[template(path = "dead.html")]
struct Page {
    c: Chrome,
    queues: Vec<(QueueSummary, Vec<GroupRow>)>,
    /// Queues left out because they have fewer dead jobs.
    omitted: usize,
}

pub(super) struct GroupRow {
    pub(super) group: DeadGroup,
    pub(super) href: String,
    /// Links to the bulk changes, if this person may change the group.
    pub(super) bulk: Option<[String; 2]>,
}

pub(super) async fn page(request: PageRequest) -> Result<Response> {
    let overview = request.session.overview().await?;
    let c = request.chrome(request.t().dead_jobs, overview.at);
    let mut queues = overview.queues;
    queues.retain(|queue| queue.dead > 0);
    queues.sort_by_key(|queue| Reverse(queue.dead));
    let omitted = queues.len().saturating_sub(MAX_QUEUES);
    queues.truncate(MAX_QUEUES);
    let mut grouped = Vec::new();
    for queue in queues {
        let groups = request.session.dead(&queue.queue).await?.groups;
        let rows = group_rows(&c, &queue.queue, groups);
        grouped.push((queue, rows));
    }
    render(StatusCode::OK, &Page { c, queues: grouped, omitted })
}

pub(super) fn group_rows(
    c: &Chrome,
    queue: &QueueName,
    groups: impl IntoIterator<Item = DeadGroup>,
) -> Vec<GroupRow> {
    let changes = c.changes(queue);
    let row = |group: DeadGroup| {
        let queue = ("queue", queue.as_str());
        let error = Some(("error", group.search.as_str()));
        // Without a search text, all dead jobs match.
        let error = error.filter(|(_, search)| !search.is_empty());
        let link = |page: &str, params: &[(&str, &str)]| {
            let params = [&[queue], params].concat().into_iter().chain(error);
            c.link(page, &params.collect::<Vec<_>>())
        };
        let count = group.count.to_string();
        let acts = changes && group.search.len() >= MIN_SEARCH;
        let bulk = |action| link("bulk", &[("do", action), ("group", &count)]);
        GroupRow {
            href: link("jobs", &[("state", "dead")]),
            bulk: acts.then(|| ["replay", "remove"].map(bulk)),
            group,
        }
    };
    groups.into_iter().map(row).collect()
}
