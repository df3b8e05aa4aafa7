//! Dead jobs, grouped by error.

use std::cmp::Reverse;

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{QueueName, Timestamp};
use dq_ops::DeadGroup;

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, number};

/// Maximum number of queues on the page, because each costs a listing.
const MAX_QUEUES: usize = 20;

#[derive(Template)]
#[template(path = "dead.html")]
struct Page {
    c: Chrome,
    queues: Vec<QueueGroups>,
    /// Queues left out because they have fewer dead jobs.
    omitted: usize,
}

struct QueueGroups {
    name: String,
    href: String,
    count: String,
    groups: Vec<GroupRow>,
}

/// Minimum search length in bytes for changing a whole group. A shorter text also matches other
/// errors.
const MIN_SEARCH: usize = 8;

pub(super) struct GroupRow {
    pub(super) kind: &'static str,
    pub(super) pattern: String,
    pub(super) sample: String,
    pub(super) count: String,
    pub(super) last: When,
    pub(super) href: String,
    pub(super) replay: Option<String>,
    pub(super) remove: Option<String>,
}

/// `GET dead`
pub(super) async fn page(request: PageRequest) -> Response {
    let mut c = request.chrome("dead");
    c.title = c.t.dead_jobs.to_owned();
    let overview = match request.session.overview().await {
        Ok(overview) => overview,
        Err(error) => return problem(c, error.into(), None),
    };
    let mut with_dead: Vec<_> = overview.queues.iter().filter(|queue| queue.dead > 0).collect();
    with_dead.sort_by_key(|queue| Reverse(queue.dead));
    let omitted = with_dead.len().saturating_sub(MAX_QUEUES);
    let mut queues = Vec::new();
    for summary in with_dead.into_iter().take(MAX_QUEUES) {
        let dead = match request.session.dead(&summary.queue).await {
            Ok(dead) => dead,
            Err(error) => return problem(c, error.into(), None),
        };
        let name = summary.queue.as_str();
        queues.push(QueueGroups {
            name: name.to_owned(),
            href: c.link("jobs", &[("queue", name), ("state", "dead")]),
            count: number(summary.dead),
            groups: group_rows(&c, &summary.queue, dead.groups, overview.at),
        });
    }
    render(StatusCode::OK, &Page { c, queues, omitted })
}

/// Returns a queue's groups, with links to their jobs and to the bulk changes.
pub(super) fn group_rows(
    c: &Chrome,
    queue: &QueueName,
    groups: impl IntoIterator<Item = DeadGroup>,
    now: Timestamp,
) -> Vec<GroupRow> {
    let row = |group: DeadGroup| {
        let name = queue.as_str();
        let error = [("error", group.search.as_str())];
        // Without a search text, all dead jobs match.
        let error: &[(&str, &str)] = if group.search.is_empty() { &[] } else { &error };
        let in_group = group.count.to_string();
        let bulk = |action: &str| {
            let base = [("queue", name), ("do", action), ("group", &in_group)];
            let acts = c.operates() && group.search.len() >= MIN_SEARCH;
            acts.then(|| c.link("bulk", &[&base, error].concat()))
        };
        let (replay, remove) = (bulk("replay"), bulk("remove"));
        let base = [("queue", name), ("state", "dead")];
        GroupRow {
            kind: group.kind.as_str(),
            href: c.link("jobs", &[&base, error].concat()),
            count: number(group.count),
            last: c.when(group.last, now),
            replay,
            remove,
            pattern: group.pattern,
            sample: group.sample,
        }
    };
    groups.into_iter().map(row).collect()
}
