//! A bulk change: the job count, and the button to confirm it.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{Due, QueueName};
use dq_ops::{BulkAction, BulkCount, parse_due};

use super::chrome::{Chrome, PageRequest, render};
use super::jobs::filter_of;
use crate::api::input::unknown_action;
use crate::problem::Result;

#[derive(Template)]
#[template(path = "bulk.html")]
struct Page {
    c: Chrome,
    queue: QueueName,
    action: BulkAction,
    action_name: &'static str,
    count: BulkCount,
    /// The group's size, if the link comes from a group of dead jobs and more jobs match.
    group: Option<u64>,
    states: String,
    find: String,
    error: String,
    back: String,
}

impl Page {
    fn takes_due(&self) -> bool {
        matches!(self.action, BulkAction::Reschedule(_))
    }

    fn destroys(&self) -> bool {
        matches!(self.action, BulkAction::Cancel | BulkAction::Remove)
    }
}

/// Parses an action. The due time comes only with the confirmation; without one, `Due::NOW` is a
/// placeholder for counting.
pub(super) fn action_of(name: &str, due: Option<&str>) -> Result<BulkAction> {
    Ok(match name {
        "cancel" => BulkAction::Cancel,
        "replay" => BulkAction::Replay,
        "remove" => BulkAction::Remove,
        "reschedule" => BulkAction::Reschedule(due.map_or(Ok(Due::NOW), parse_due)?),
        _ => return Err(unknown_action(name, &["cancel", "replay", "remove", "reschedule"])),
    })
}

/// `GET bulk?queue=&do=&find=&error=&group=`
pub(super) async fn page(request: PageRequest) -> Result<Response> {
    let t = request.t();
    let queue = QueueName::new(request.param("queue").unwrap_or_default())?;
    let action = action_of(request.param("do").unwrap_or_default(), None)?;
    let count = request.session.count(&queue, action, &filter_of(&request)).await?;
    let action_name = match action {
        BulkAction::Cancel => t.cancel,
        BulkAction::Replay => t.replay,
        BulkAction::Remove => t.remove,
        _ => t.reschedule,
    };
    let takes_dead = matches!(action, BulkAction::Replay | BulkAction::Remove);
    let state = if takes_dead { "dead" } else { "scheduled" };
    let c = request.chrome(format!("{action_name} · {queue}"), count.at);
    let text = |name: &str| request.param(name).unwrap_or_default().to_owned();
    let kept = ["find", "error"].map(|param| Some((param, request.param(param)?)));
    let base = [("queue", queue.as_str()), ("state", state)];
    let back: Vec<_> = base.into_iter().chain(kept.into_iter().flatten()).collect();
    let page = Page {
        back: c.link("jobs", &back),
        group: request
            .param("group")
            .and_then(|group| group.parse().ok())
            .filter(|group| count.matching > *group),
        states: if takes_dead {
            t.dead.to_owned()
        } else {
            format!("{}, {}", t.scheduled, t.ready)
        },
        find: text("find"),
        error: text("error"),
        queue,
        action,
        action_name,
        count,
        c,
    };
    render(StatusCode::OK, &page)
}
