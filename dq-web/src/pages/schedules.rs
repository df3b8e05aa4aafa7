//! Schedules: the list, and one with its next occurrences.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::ScheduleSpec;
use dq_ops::{ScheduleDetail, ScheduleSummary, Session, parse_timestamp};

use super::chrome::{Chrome, PageRequest, render};
use super::format::second;
use super::job::Payload;
use crate::api::input::unknown_action;
use crate::problem::Result;

/// Occurrences on a schedule's page.
const NEXT: usize = 10;

#[derive(Template)]
#[template(path = "schedules.html")]
struct ListPage {
    c: Chrome,
    schedules: Vec<ScheduleSummary>,
}

pub(super) async fn list(request: PageRequest) -> Result<Response> {
    let schedules = request.session.schedules().await?;
    let c = request.chrome(request.t().schedules, request.session.now().await?);
    render(StatusCode::OK, &ListPage { c, schedules })
}

/// A schedule's state, if it is not simply active.
pub(super) struct State {
    pub(super) class: &'static str,
    pub(super) text: &'static str,
    pub(super) note: &'static str,
}

impl Chrome {
    pub(super) fn schedule_state(&self, schedule: &ScheduleSummary) -> Option<State> {
        let t = self.t;
        let (class, text, note) = match (schedule.paused, schedule.stopped, schedule.orphaned) {
            (true, ..) => ("paused", t.paused, t.schedule_paused),
            (_, true, _) => ("dead", t.stopped, t.schedule_stopped),
            (_, _, true) => ("ready", t.orphaned, t.schedule_orphaned),
            _ => return None,
        };
        Some(State { class, text, note })
    }

    /// Formats when a schedule recurs, beside its cron expression if it has one.
    pub(super) fn times(&self, schedule: &ScheduleSummary) -> String {
        match &schedule.every_ms {
            Some(millis) => format!("{} {}", self.t.every, self.duration(millis)),
            None => schedule.tz.clone().unwrap_or_default(),
        }
    }
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct DetailPage {
    c: Chrome,
    detail: ScheduleDetail,
    facts: Vec<(&'static str, String)>,
    payload: Option<Payload>,
    list: String,
}

/// `GET schedule?name=`
pub(super) async fn detail(request: PageRequest) -> Result<Response> {
    let name = request.param("name").unwrap_or_default();
    ScheduleSpec::check_name(name)?;
    let detail = request.session.recurring(name, NEXT).await?;
    let c = request.chrome(format!("{name} · {}", request.t().schedule), detail.at);
    let page = DetailPage {
        facts: facts(&c, &detail),
        payload: detail.payload.as_ref().map(Payload::new),
        list: c.page("schedules"),
        detail,
        c,
    };
    render(StatusCode::OK, &page)
}

fn facts(c: &Chrome, detail: &ScheduleDetail) -> Vec<(&'static str, String)> {
    let (t, schedule) = (c.t, &detail.schedule);
    let catch_up = match schedule.catch_up.strip_prefix("all:") {
        Some(limit) => format!("{} {limit}", t.catch_up_all),
        None => t.of("catch_up", &schedule.catch_up).to_owned(),
    };
    let overlap = t.of("overlap", &schedule.overlap).to_owned();
    let mut facts = vec![(t.catch_up, catch_up), (t.overlap, overlap)];
    for (name, millis) in [(t.deadline, schedule.deadline_ms), (t.jitter, schedule.jitter_ms)] {
        facts.extend(millis.map(|millis| (name, c.duration(&millis))));
    }
    let version = detail.schema_version.map(|version| (t.schema_version, version.to_string()));
    facts.extend(version);
    let origin = match schedule.generation {
        Some(generation) => format!("{} · {generation}", t.declared),
        None => t.made_by_call.to_owned(),
    };
    facts.push((t.origin, origin));
    facts
}

pub(super) async fn change(
    session: &Session,
    action: &str,
    name: &str,
    after: &str,
    until: &str,
) -> Result<&'static str> {
    ScheduleSpec::check_name(name)?;
    Ok(match action {
        "pause" => session.pause_schedule(name).await.map(|_| "schedule-pause")?,
        "resume" => session.resume_schedule(name).await.map(|_| "schedule-resume")?,
        "skip" => session.skip_next(name).await.map(|()| "schedule-skip")?,
        "run" => match session.run_schedule(name).await?.is_stored() {
            true => "schedule-run",
            false => "schedule-kept",
        },
        "backfill" => {
            let (after, until) = (parse_timestamp(after)?, parse_timestamp(until)?);
            match session.backfill(name, after, until).await?.changed {
                0 => "schedule-no-backfill",
                _ => "schedule-backfill",
            }
        }
        "remove" => session.remove_schedule(name).await.map(|()| "schedule-remove")?,
        _ => {
            let known = ["pause", "resume", "skip", "run", "backfill", "remove"];
            return Err(unknown_action(action, &known));
        }
    })
}
