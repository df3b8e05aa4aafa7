//! One job: its timeline, what it waits for, its payload.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{JobState, QueueName, Target};
use dq_ops::{EventKind, JobDetail, Presence, Timeline, WaitReason, parse_target};

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, duration, number, size};
use crate::problem::Problem;

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    c: Chrome,
    queue: String,
    queue_href: String,
    list_href: String,
    id: String,
    key: Option<String>,
    state: String,
    state_name: &'static str,
    events: Vec<Event>,
    now: Option<Now>,
    facts: Vec<(&'static str, String)>,
    times: Vec<(&'static str, When)>,
    payload: Option<Payload>,
    headers: Vec<(String, String)>,
    is_hidden: bool,
    has_ended: bool,
    waits: bool,
    is_dead: bool,
}

struct Event {
    class: &'static str,
    name: &'static str,
    note: String,
    text: Option<String>,
    when: Option<When>,
}

struct Now {
    class: &'static str,
    text: String,
    presence: String,
}

pub(super) struct Payload {
    pub(super) about: String,
    pub(super) text: String,
    pub(super) is_truncated: bool,
}

impl Payload {
    pub(super) fn new(view: &dq_ops::PayloadView) -> Self {
        let json = view.json.as_ref().map(dq_ops::RawJson::pretty);
        let text = json.or_else(|| view.text.clone()).or_else(|| view.base64.clone());
        Self {
            about: format!("{} · {}", view.content_type, size(view.size)),
            text: text.unwrap_or_default(),
            is_truncated: view.truncated,
        }
    }
}

/// `GET job?queue=&id=`, or `&key=`
pub(super) async fn page(request: PageRequest) -> Response {
    let mut c = request.chrome("jobs");
    c.title = c.t.job.to_owned();
    let (queue, target) = match named(&request) {
        Ok(named) => named,
        Err(error) => return problem(c, error, None),
    };
    let detail = request.session.job(&queue, &target).await;
    let timeline = request.session.timeline(&queue, &target).await;
    let (detail, timeline) = match (detail, timeline) {
        (Ok(detail), Ok(timeline)) => (detail, timeline),
        (Err(error), _) | (_, Err(error)) => return problem(c, error.into(), None),
    };
    let job = &timeline.job;
    let state = job.state.to_string();
    c.title = format!("{} · {}", job.key.as_deref().unwrap_or(&job.id.to_string()), job.queue);
    let name = queue.as_str();
    let page = Page {
        queue_href: c.link("queue", &[("name", name)]),
        list_href: c.link("jobs", &[("queue", name), ("state", &state)]),
        queue: name.to_owned(),
        id: job.id.to_string(),
        key: job.key.clone(),
        state_name: state_name(&c, job.state),
        events: events(&c, &timeline),
        now: now(&c, &timeline),
        facts: facts(&c, &timeline),
        times: times(&c, &timeline),
        payload: detail.payload.as_ref().map(Payload::new),
        headers: headers(&detail),
        is_hidden: detail.headers.is_none(),
        has_ended: job.state == JobState::Ended,
        waits: matches!(job.state, JobState::Scheduled | JobState::Ready),
        is_dead: job.state == JobState::Dead,
        state,
        c,
    };
    render(StatusCode::OK, &page)
}

fn named(request: &PageRequest) -> Result<(QueueName, Target), Problem> {
    let queue = QueueName::new(request.param("queue").unwrap_or_default())?;
    let target = match (request.param("id"), request.param("key")) {
        (Some(id), _) => parse_target(id)?,
        (None, Some(key)) => parse_target(&format!("key:{key}"))?,
        (None, None) => return Err(Problem::bad_request("the address names no job")),
    };
    Ok((queue, target))
}

pub(super) fn state_name(c: &Chrome, state: JobState) -> &'static str {
    match state {
        JobState::Scheduled => c.t.scheduled,
        JobState::Ready => c.t.ready,
        JobState::Running => c.t.running,
        JobState::Dead => c.t.dead,
        _ => c.t.ev_ended,
    }
}

fn events(c: &Chrome, timeline: &Timeline) -> Vec<Event> {
    let t = c.t;
    timeline
        .events
        .iter()
        .map(|event| {
            let (class, name, note, text) = match &event.kind {
                EventKind::Scheduled => ("scheduled", t.ev_scheduled, String::new(), None),
                EventKind::Due => ("ready", t.ev_due, String::new(), None),
                EventKind::Claimed { worker, late_ms } => {
                    let late = late_ms.map(|late| format!("+{}", duration(late, c.lang)));
                    let by = worker.as_ref().map(|worker| format!("{} {worker}", t.claimed_by));
                    let note: Vec<String> = by.into_iter().chain(late).collect();
                    ("running", t.ev_claimed, note.join(" · "), None)
                }
                EventKind::Lost { times } => ("dead", t.ev_lost, format!("×{times}"), None),
                EventKind::Failed { error, attempt } => {
                    ("dead", t.ev_failed, format!("#{attempt}"), Some(error.clone()))
                }
                EventKind::Dead { reason, attempt } => {
                    let attempt = attempt.map(|attempt| format!("#{attempt}"));
                    ("dead", t.ev_dead, attempt.unwrap_or_default(), Some(reason.clone()))
                }
                EventKind::Ended { ending, reason } => {
                    ("ended", t.ev_ended, t.ending(ending).to_owned(), reason.clone())
                }
                // An event from a later version.
                _ => ("scheduled", "–", String::new(), None),
            };
            Event { class, name, note, text, when: When::some(event.at, timeline.at, c.lang) }
        })
        .collect()
}

fn now(c: &Chrome, timeline: &Timeline) -> Option<Now> {
    let t = c.t;
    let (class, text) = match timeline.now.as_ref()? {
        WaitReason::NotDue { in_ms } => {
            ("scheduled", format!("{} {}", t.wait_not_due, duration(*in_ms, c.lang)))
        }
        WaitReason::Paused => ("paused", t.wait_paused.to_owned()),
        WaitReason::NoRunner => ("dead", t.wait_no_runner.to_owned()),
        WaitReason::NoFreeSlot => ("ready", t.wait_no_slot.to_owned()),
        WaitReason::Claimable => ("ready", t.wait_claimable.to_owned()),
        WaitReason::Running { worker } => {
            let worker = worker.as_ref().map(|worker| format!(" · {worker}"));
            ("running", format!("{}{}", t.wait_running, worker.unwrap_or_default()))
        }
        WaitReason::Dead => ("dead", t.wait_dead.to_owned()),
        _ => ("ready", t.wait_unknown.to_owned()),
    };
    Some(Now { class, text, presence: presence(c, &timeline.presence) })
}

fn presence(c: &Chrome, presence: &Presence) -> String {
    let t = c.t;
    let mut parts = Vec::new();
    if presence.paused {
        parts.push(t.paused.to_owned());
    }
    if let Some(runners) = presence.runners {
        let listen = if runners == 1 { t.listens } else { t.listen };
        parts.push(format!("{} {listen}", number(runners)));
    }
    if let (Some(free), Some(slots)) = (presence.free_slots, presence.slots)
        && slots > 0
    {
        parts.push(format!("{} {} {} {}", number(free), t.max, number(slots), t.of_slots));
    }
    parts.join(" · ")
}

fn facts(c: &Chrome, timeline: &Timeline) -> Vec<(&'static str, String)> {
    let (t, job) = (c.t, &timeline.job);
    let attempts = match job.max_attempts {
        Some(max) => format!("{} {} {max}", job.attempts, t.max),
        None => job.attempts.to_string(),
    };
    vec![(t.attempts, attempts), (t.deliveries, job.deliveries.to_string())]
}

fn times(c: &Chrome, timeline: &Timeline) -> Vec<(&'static str, When)> {
    let job = &timeline.job;
    [(c.t.created, job.created), (c.t.due, job.due)]
        .map(|(name, at)| (name, c.when(at, timeline.at)))
        .into()
}

fn headers(detail: &JobDetail) -> Vec<(String, String)> {
    detail.headers.clone().unwrap_or_default().into_iter().collect()
}
