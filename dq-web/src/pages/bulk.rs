//! A bulk change: the job count, and the button to confirm it.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{Due, QueueName};
use dq_ops::{BulkAction, JobFilter, parse_due};

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::number;
use super::jobs::filter_of;
use crate::problem::Problem;

#[derive(Template)]
#[template(path = "bulk.html")]
struct Page {
    c: Chrome,
    queue: String,
    action: &'static str,
    action_name: &'static str,
    matching: u64,
    matching_text: String,
    complete: bool,
    /// The group's size, if the link comes from a group of dead jobs and more jobs match.
    group: Option<String>,
    states: String,
    find: String,
    error: String,
    takes_due: bool,
    destroys: bool,
    back: String,
}

/// Parses an action. A new due time comes with the confirmation.
pub(super) fn action_of(name: &str, due: Option<&str>) -> Result<BulkAction, Problem> {
    Ok(match name {
        "cancel" => BulkAction::Cancel,
        "replay" => BulkAction::Replay,
        "remove" => BulkAction::Remove,
        "reschedule" => BulkAction::Reschedule(due.map_or(Ok(Due::NOW), parse_due)?),
        _ => return Err(Problem::bad_request("there is no such action")),
    })
}

/// `GET bulk?queue=&do=&find=&error=&group=`
pub(super) async fn page(request: PageRequest) -> Response {
    let mut c = request.chrome("jobs");
    let (queue, action, filter) = match asked(&request) {
        Ok(asked) => asked,
        Err(error) => return problem(c, error, None),
    };
    let count = match request.session.count(&queue, action, &filter).await {
        Ok(count) => count,
        Err(error) => return problem(c, error.into(), None),
    };
    let (action_name, state) = match action {
        BulkAction::Cancel => (c.t.cancel, "scheduled"),
        BulkAction::Replay => (c.t.replay, "dead"),
        BulkAction::Remove => (c.t.remove, "dead"),
        _ => (c.t.reschedule, "scheduled"),
    };
    c.title = format!("{action_name} · {}", queue.as_str());
    let text = |name: &str| request.param(name).unwrap_or_default().to_owned();
    let kept: Vec<(&str, &str)> = ["find", "error"]
        .into_iter()
        .filter_map(|param| Some((param, request.param(param)?)))
        .collect();
    let base = [("queue", queue.as_str()), ("state", state)];
    let page = Page {
        back: c.link("jobs", &[&base, &kept[..]].concat()),
        queue: queue.as_str().to_owned(),
        action: action.as_str(),
        action_name,
        matching: count.matching,
        matching_text: number(count.matching),
        complete: count.complete,
        group: request
            .param("group")
            .and_then(|group| group.parse().ok())
            .filter(|group| count.matching > *group)
            .map(number),
        states: match action {
            BulkAction::Replay | BulkAction::Remove => c.t.dead.to_owned(),
            _ => format!("{}, {}", c.t.scheduled, c.t.ready),
        },
        find: text("find"),
        error: text("error"),
        takes_due: matches!(action, BulkAction::Reschedule(_)),
        destroys: matches!(action, BulkAction::Cancel | BulkAction::Remove),
        c,
    };
    render(StatusCode::OK, &page)
}

fn asked(request: &PageRequest) -> Result<(QueueName, BulkAction, JobFilter), Problem> {
    let queue = QueueName::new(request.param("queue").unwrap_or_default())?;
    let action = action_of(request.param("do").unwrap_or_default(), None)?;
    Ok((queue, action, filter_of(request)))
}
