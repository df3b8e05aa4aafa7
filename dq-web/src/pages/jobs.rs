//! The jobs of a queue in one state.

use askama::Template;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use dq_core::{JobId, JobState, QueueName, Timestamp};
use dq_ops::{JobFilter, JobPage, JobQuery, JobSummary};

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, number};
use super::text::Texts;
use crate::problem::Problem;

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    c: Chrome,
    queue: String,
    queue_href: String,
    queues: Vec<String>,
    tabs: Vec<Tab>,
    state: &'static str,
    find: String,
    error: String,
    contains: String,
    is_filtered: bool,
    clear: String,
    rows: Vec<JobRow>,
    time_label: &'static str,
    detail_label: &'static str,
    first: Option<String>,
    next: Option<String>,
    bulk: Vec<(&'static str, String)>,
}

/// A state with its number of jobs.
struct Tab {
    class: &'static str,
    name: &'static str,
    count: Option<String>,
    href: String,
    is_current: bool,
}

/// A line of the table.
pub(super) struct JobRow {
    pub(super) id: String,
    short_id: String,
    key: Option<String>,
    href: String,
    when: When,
    attempts: String,
    detail: Option<String>,
    is_error: bool,
    can_cancel: bool,
    /// The job is dead, and the person may replay and remove it.
    can_replay: bool,
}

/// Parses the name of a state; `scheduled` if there is none.
pub(super) fn state_of(name: Option<&str>) -> Option<(JobState, &'static str)> {
    Some(match name {
        None | Some("scheduled") => (JobState::Scheduled, "scheduled"),
        Some("ready") => (JobState::Ready, "ready"),
        Some("running") => (JobState::Running, "running"),
        Some("dead") => (JobState::Dead, "dead"),
        Some("ended") => (JobState::Ended, "ended"),
        Some(_) => return None,
    })
}

/// The filter in the query of a page.
pub(super) fn filter_of(request: &PageRequest) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.key_prefix = request.param("find").map(str::to_owned);
    filter.error = request.param("error").map(str::to_owned);
    filter
}

/// `GET jobs?queue=&state=&find=&error=&contains=&after=`
pub(super) async fn page(request: PageRequest) -> Response {
    let mut c = request.chrome("jobs");
    c.title = c.t.jobs.to_owned();
    match load(&request, c).await {
        Ok(response) => response,
        Err(failed) => {
            let (error, c) = *failed;
            problem(c, error, None)
        }
    }
}

async fn load(request: &PageRequest, mut c: Chrome) -> Result<Response, Box<(Problem, Chrome)>> {
    macro_rules! attempt {
        ($result:expr) => {
            match $result {
                Ok(value) => value,
                Err(error) => return Err(Box::new((error.into(), c))),
            }
        };
    }
    let session = &request.session;
    let overview = attempt!(session.overview().await);
    let queues: Vec<String> =
        overview.queues.iter().map(|queue| queue.queue.as_str().to_owned()).collect();
    let Some(name) = request.param("queue").map(str::to_owned).or_else(|| queues.first().cloned())
    else {
        let page = empty(c);
        return Ok(render(StatusCode::OK, &page));
    };
    let queue = attempt!(QueueName::new(&name));
    let Some((state, state_name)) = state_of(request.param("state")) else {
        return Err(Box::new((Problem::bad_request("there is no such state"), c)));
    };
    // An id selects its job in any state.
    if let Some(id) = request.param("find").and_then(|find| find.trim().parse::<JobId>().ok()) {
        let location = c.link("job", &[("queue", &name), ("id", &id.to_string())]);
        return Ok((StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response());
    }
    let mut query = JobQuery::new(state);
    query.filter = filter_of(request);
    query.contains = request.param("contains").filter(|_| c.reads()).map(str::to_owned);
    query.after = request.param("after").map(str::to_owned);
    query.descending = matches!(state, JobState::Dead | JobState::Ended);
    let listing = attempt!(session.jobs(&queue, &query).await);

    c.title = format!("{name} · {}", c.t.jobs);
    let summary = overview.queues.iter().find(|summary| summary.queue == queue);
    let count = |state: &str| {
        let summary = summary?;
        Some(number(match state {
            "scheduled" => summary.scheduled,
            "ready" => summary.ready,
            "running" => summary.running,
            "dead" => summary.dead,
            _ => return None,
        }))
    };
    let tab = |class: &'static str, label: &'static str| Tab {
        class,
        name: label,
        count: count(class),
        href: c.link("jobs", &[("queue", &name), ("state", class)]),
        is_current: class == state_name,
    };
    let t = c.t;
    let tabs = vec![
        tab("scheduled", t.scheduled),
        tab("ready", t.ready),
        tab("running", t.running),
        tab("dead", t.dead),
        tab("ended", t.ended),
    ];
    let text = |name: &str| request.param(name).unwrap_or_default().to_owned();
    let kept: Vec<(&str, &str)> = ["find", "error", "contains"]
        .into_iter()
        .filter(|param| *param != "contains" || query.contains.is_some())
        .filter_map(|param| Some((param, request.param(param)?)))
        .collect();
    let base = [("queue", name.as_str()), ("state", state_name)];
    let with = |more: &[(&str, &str)]| c.link("jobs", &[&base, &kept[..], more].concat());
    let bulk = bulk_links(&c, &name, state_name, &kept, &listing);
    let page = Page {
        queue_href: c.link("queue", &[("name", &name)]),
        queues,
        tabs,
        state: state_name,
        find: text("find"),
        error: text("error"),
        contains: query.contains.clone().unwrap_or_default(),
        is_filtered: !kept.is_empty(),
        clear: c.link("jobs", &base),
        rows: rows(&c, &queue, &listing),
        time_label: time_label(&c, state),
        detail_label: detail_label(&c, state),
        first: query.after.as_ref().map(|_| with(&[])),
        next: listing.next.as_deref().map(|next| with(&[("after", next)])),
        bulk,
        queue: name,
        c,
    };
    Ok(render(StatusCode::OK, &page))
}

fn empty(c: Chrome) -> Page {
    Page {
        queue: String::new(),
        queue_href: String::new(),
        queues: Vec::new(),
        tabs: Vec::new(),
        state: "scheduled",
        find: String::new(),
        error: String::new(),
        contains: String::new(),
        is_filtered: false,
        clear: String::new(),
        rows: Vec::new(),
        time_label: c.t.due,
        detail_label: c.t.error,
        first: None,
        next: None,
        bulk: Vec::new(),
        c,
    }
}

fn time_label(c: &Chrome, state: JobState) -> &'static str {
    match state {
        JobState::Dead => c.t.ev_dead,
        JobState::Ended => c.t.ev_ended,
        JobState::Running => c.t.ev_claimed,
        _ => c.t.due,
    }
}

fn detail_label(c: &Chrome, state: JobState) -> &'static str {
    match state {
        JobState::Running => c.t.worker,
        JobState::Ended => c.t.outcome,
        _ => c.t.error,
    }
}

/// Links to the changes of all jobs that match. A search in payloads is not a filter of a bulk action.
fn bulk_links(
    c: &Chrome,
    queue: &str,
    state: &str,
    kept: &[(&str, &str)],
    listing: &JobPage,
) -> Vec<(&'static str, String)> {
    let searches = kept.iter().any(|(name, _)| *name == "contains");
    if !c.operates() || searches || listing.jobs.is_empty() {
        return Vec::new();
    }
    let link = |action: &str| {
        let base = [("queue", queue), ("do", action)];
        c.link("bulk", &[&base, kept].concat())
    };
    match state {
        "scheduled" | "ready" => {
            vec![(c.t.move_all, link("reschedule")), (c.t.cancel_all, link("cancel"))]
        }
        "dead" => vec![(c.t.replay_all, link("replay")), (c.t.remove_all, link("remove"))],
        _ => Vec::new(),
    }
}

fn rows(c: &Chrome, queue: &QueueName, listing: &JobPage) -> Vec<JobRow> {
    listing.jobs.iter().map(|job| row(c, queue, job, listing.at)).collect()
}

fn row(c: &Chrome, queue: &QueueName, job: &JobSummary, now: Timestamp) -> JobRow {
    let id = job.id.to_string();
    let waits = matches!(job.state, JobState::Scheduled | JobState::Ready);
    let at = match job.state {
        JobState::Dead => job.dead.as_ref().map(|dead| dead.at),
        JobState::Ended => job.ended.as_ref().map(|ended| ended.at),
        JobState::Running => job.claimed_at,
        _ => None,
    };
    let (detail, is_error) = detail(job, c.t);
    JobRow {
        // The last part of an id differs most.
        short_id: format!("…{}", &id[id.len() - 12..]),
        href: c.link("job", &[("queue", queue.as_str()), ("id", &id)]),
        key: job.key.clone(),
        when: c.when(at.unwrap_or(job.due), now),
        attempts: match job.max_attempts {
            Some(max) => format!("{}/{max}", job.attempts),
            None => job.attempts.to_string(),
        },
        detail,
        is_error,
        can_cancel: waits && c.operates(),
        can_replay: job.state == JobState::Dead && c.operates(),
        id,
    }
}

/// What matters most about a job in a list, and whether it is an error.
fn detail(job: &JobSummary, t: &Texts) -> (Option<String>, bool) {
    if let Some(dead) = &job.dead {
        return (Some(dead.message.clone()), true);
    }
    if let Some(ended) = &job.ended {
        let reason = ended.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let ending = t.ending(ended.ending.as_str());
        return (Some(format!("{ending}{reason}")), false);
    }
    if job.state == JobState::Running {
        return (job.worker.clone(), false);
    }
    (job.last_error.clone(), true)
}
