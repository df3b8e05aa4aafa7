//! One job: its timeline, wait reason and payload.

use std::collections::BTreeMap;

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{JobState, QueueName, Target};
use dq_ops::{EventKind, JobSummary, Timeline, TimelineEvent, WaitReason, parse_target};

use super::chrome::{Chrome, PageRequest, render};
use super::format::{When, number, size};
use crate::problem::{Problem, Result};

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    c: Chrome,
    job: JobSummary,
    state_name: &'static str,
    events: Vec<Event>,
    now: Option<Now>,
    payload: Option<Payload>,
    /// `None` if the role does not show them.
    headers: Option<BTreeMap<String, String>>,
}

impl Page {
    fn list_href(&self) -> String {
        self.c.jobs_link(self.job.queue.as_str(), self.job.state)
    }

    fn waits(&self) -> bool {
        matches!(self.job.state, JobState::Scheduled | JobState::Ready)
    }

    fn is_dead(&self) -> bool {
        self.job.state == JobState::Dead
    }
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
        Self {
            about: format!("{} · {}", view.content_type, size(view.size)),
            text: view.shown(),
            is_truncated: view.truncated,
        }
    }
}

/// `GET job?queue=&id=`, or `&key=`
pub(super) async fn page(request: PageRequest) -> Result<Response> {
    let (queue, target) = named(&request)?;
    let detail = request.session.job(&queue, &target).await?;
    let timeline = request.session.timeline(&queue, &target).await?;
    let job = &timeline.job;
    let name = job.key.clone().unwrap_or_else(|| job.id.to_string());
    let c = request.chrome(format!("{name} · {queue}"), timeline.at);
    let page = Page {
        state_name: c.state_name(job.state),
        events: timeline.events.iter().map(|event| shown_event(&c, event)).collect(),
        now: now(&c, &timeline),
        payload: detail.payload.as_ref().map(Payload::new),
        headers: detail.headers,
        job: timeline.job,
        c,
    };
    render(StatusCode::OK, &page)
}

fn named(request: &PageRequest) -> Result<(QueueName, Target)> {
    let queue = QueueName::new(request.param("queue").unwrap_or_default())?;
    let target = match (request.param("id"), request.param("key")) {
        (Some(id), _) => parse_target(id)?,
        (None, Some(key)) => parse_target(&format!("key:{key}"))?,
        (None, None) => return Err(Problem::bad_request("the address names no job")),
    };
    Ok((queue, target))
}

fn shown_event(c: &Chrome, event: &TimelineEvent) -> Event {
    let t = c.t;
    let (class, name, note, text) = match &event.kind {
        EventKind::Scheduled => ("scheduled", t.ev_scheduled, String::new(), None),
        EventKind::Due => ("ready", t.ev_due, String::new(), None),
        EventKind::Claimed { worker, late_ms } => {
            let late = late_ms.map(|late| format!("+{}", c.duration(&late)));
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
            ("ended", t.ev_ended, t.of("end", ending).to_owned(), reason.clone())
        }
        // An event from a later version.
        _ => ("scheduled", "–", String::new(), None),
    };
    Event { class, name, note, text, when: event.at.map(|at| c.when(&at)) }
}

fn now(c: &Chrome, timeline: &Timeline) -> Option<Now> {
    let t = c.t;
    let (class, text) = match timeline.now.as_ref()? {
        WaitReason::NotDue { in_ms } => {
            ("scheduled", format!("{} {}", t.wait_not_due, c.duration(in_ms)))
        }
        WaitReason::Paused => ("paused", t.wait_paused.to_owned()),
        WaitReason::NoRunner => ("dead", t.wait_no_runner.to_owned()),
        WaitReason::MaxRunning => ("ready", t.cause_max_running.to_owned()),
        WaitReason::Rate => ("ready", t.cause_rate.to_owned()),
        WaitReason::Throttled => ("ready", t.cause_throttled.to_owned()),
        WaitReason::GroupFull { group, running } => {
            ("ready", format!("{} {group} ({})", t.wait_group, number(u64::from(*running))))
        }
        WaitReason::NoFreeSlot => ("ready", t.wait_no_slot.to_owned()),
        WaitReason::Claimable => ("ready", t.wait_claimable.to_owned()),
        WaitReason::Running { worker } => {
            let worker = worker.as_ref().map(|worker| format!(" · {worker}"));
            ("running", format!("{}{}", t.wait_running, worker.unwrap_or_default()))
        }
        WaitReason::Dead => ("dead", t.wait_dead.to_owned()),
        _ => ("ready", t.wait_unknown.to_owned()),
    };
    Some(Now { class, text, presence: presence(c, timeline) })
}

fn presence(c: &Chrome, timeline: &Timeline) -> String {
    let (t, presence) = (c.t, &timeline.presence);
    let mut parts = Vec::new();
    if presence.paused {
        parts.push(t.paused.to_owned());
    }
    if let Some(runners) = presence.runners {
        parts.push(match runners {
            0 => t.listens_none.to_owned(),
            1 => format!("1 {}", t.listens),
            _ => format!("{} {}", number(runners), t.listen),
        });
    }
    // A job that runs or is dead waits for no slot.
    let waits = !matches!(timeline.now, Some(WaitReason::Running { .. } | WaitReason::Dead));
    if let (Some(free), Some(slots)) = (presence.free_slots, presence.slots)
        && slots > 0
        && waits
    {
        parts.push(format!("{} {} {} {}", number(free), t.max, number(slots), t.of_slots));
    }
    parts.join(" · ")
}
