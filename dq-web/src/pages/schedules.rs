//! Schedules: the list, and one with its next occurrences.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{ScheduleSpec, Timestamp};
use dq_ops::{Occurrence, RecurringDetail, RecurringSummary, Session, parse_timestamp};

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, duration};
use super::job::Payload;
use crate::problem::Problem;

/// Occurrences on a schedule's page.
const NEXT: usize = 10;

#[derive(Template)]
#[template(path = "schedules.html")]
struct ListPage {
    c: Chrome,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    href: String,
    queue: String,
    queue_href: String,
    times: Times,
    badge: Option<Badge>,
    paused: bool,
    next: When,
}

/// When a schedule recurs: a cron expression, or a text.
struct Times {
    cron: Option<String>,
    text: String,
}

struct Badge {
    class: &'static str,
    text: &'static str,
}

/// `GET schedules`
pub(super) async fn list(request: PageRequest) -> Response {
    let mut c = request.chrome("schedules");
    c.title = c.t.schedules.to_owned();
    let (schedules, now) = match (request.session.schedules().await, request.session.now().await) {
        (Ok(schedules), Ok(now)) => (schedules, now),
        (Err(error), _) | (_, Err(error)) => return problem(c, error.into(), None),
    };
    let rows = schedules.iter().map(|schedule| row(&c, schedule, now)).collect();
    render(StatusCode::OK, &ListPage { rows, c })
}

fn row(c: &Chrome, schedule: &RecurringSummary, now: Timestamp) -> Row {
    let queue = schedule.queue.as_str();
    Row {
        name: schedule.name.clone(),
        href: c.link("schedule", &[("name", &schedule.name)]),
        queue: queue.to_owned(),
        queue_href: c.link("queue", &[("name", queue)]),
        times: times(c, schedule),
        badge: badge(c, schedule),
        paused: schedule.paused,
        next: c.when(schedule.next_due, now),
    }
}

fn times(c: &Chrome, schedule: &RecurringSummary) -> Times {
    let text = match schedule.every_ms {
        Some(millis) => format!("{} {}", c.t.every, duration(millis, c.lang)),
        None => schedule.tz.clone().unwrap_or_default(),
    };
    Times { cron: schedule.cron.clone(), text }
}

fn badge(c: &Chrome, schedule: &RecurringSummary) -> Option<Badge> {
    let (class, text) = match (schedule.paused, schedule.stopped, schedule.orphaned) {
        (true, ..) => ("paused", c.t.paused),
        (_, true, _) => ("dead", c.t.stopped),
        (_, _, true) => ("ready", c.t.orphaned),
        _ => return None,
    };
    Some(Badge { class, text })
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct DetailPage {
    c: Chrome,
    row: Row,
    note: Option<&'static str>,
    next: Vec<NextRow>,
    facts: Vec<(&'static str, String)>,
    payload: Option<Payload>,
    list: String,
}

struct NextRow {
    when: When,
    /// To the second.
    utc: String,
    /// In the schedule's time zone.
    local: Option<String>,
}

/// `GET schedule?name=`
pub(super) async fn detail(request: PageRequest) -> Response {
    let mut c = request.chrome("schedules");
    c.title = c.t.schedule.to_owned();
    let list = c.page("schedules");
    let name = request.param("name").unwrap_or_default();
    if let Err(error) = ScheduleSpec::check_name(name) {
        return problem(c, error.into(), Some(list));
    }
    let detail = match request.session.recurring(name, NEXT).await {
        Ok(detail) => detail,
        Err(error) => return problem(c, error.into(), Some(list)),
    };
    c.title = format!("{name} · {}", c.t.schedule);
    let schedule = &detail.schedule;
    let page = DetailPage {
        row: row(&c, schedule, detail.at),
        note: note(&c, schedule),
        next: detail.next.iter().map(|next| next_row(&c, next, detail.at)).collect(),
        facts: facts(&c, &detail),
        payload: detail.payload.as_ref().map(Payload::new),
        list,
        c,
    };
    render(StatusCode::OK, &page)
}

/// Explains a schedule's state.
fn note(c: &Chrome, schedule: &RecurringSummary) -> Option<&'static str> {
    match (schedule.paused, schedule.stopped, schedule.orphaned) {
        (true, ..) => Some(c.t.schedule_paused),
        (_, true, _) => Some(c.t.schedule_stopped),
        (_, _, true) => Some(c.t.schedule_orphaned),
        _ => None,
    }
}

fn next_row(c: &Chrome, next: &Occurrence, now: Timestamp) -> NextRow {
    let when = c.when(next.due, now);
    NextRow { utc: to_the_second(&when.exact), local: next.local.as_deref().map(local), when }
}

/// Formats a local time such as `2027-03-29 02:30:00 +02:00`.
fn local(time: &str) -> String {
    let time = to_the_second(&time.replacen('T', " ", 1));
    match time.split_at_checked("2027-03-29 02:30:00".len()) {
        Some((time, offset)) => format!("{time} {offset}"),
        None => time,
    }
}

/// Cuts fractions of a second, which jitter makes long and useless.
fn to_the_second(time: &str) -> String {
    match time.split_once('.') {
        Some((time, rest)) => {
            format!("{time}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => time.to_owned(),
    }
}

fn facts(c: &Chrome, detail: &RecurringDetail) -> Vec<(&'static str, String)> {
    let (t, schedule) = (c.t, &detail.schedule);
    let catch_up = match schedule.catch_up.as_str() {
        "last" => t.catch_up_last.to_owned(),
        "none" => t.catch_up_none.to_owned(),
        other => format!("{} {}", t.catch_up_all, other.trim_start_matches("all:")),
    };
    let overlap = match schedule.overlap.as_str() {
        "allow" => t.overlap_allow,
        "queue_one" => t.overlap_queue_one,
        _ => t.overlap_skip,
    };
    let mut facts = vec![(t.catch_up, catch_up), (t.overlap, overlap.to_owned())];
    for (name, millis) in [(t.deadline, schedule.deadline_ms), (t.jitter, schedule.jitter_ms)] {
        facts.extend(millis.map(|millis| (name, duration(millis, c.lang))));
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

/// Applies a form to a schedule; returns the action name.
pub(super) async fn change(
    session: &Session,
    action: &str,
    name: &str,
    after: &str,
    until: &str,
) -> Result<&'static str, Problem> {
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
        _ => return Err(Problem::bad_request("there is no such action")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_to_the_second_with_their_offset() {
        for (time, shown) in [
            ("2027-03-29T02:30:13.656+02:00", "2027-03-29 02:30:13 +02:00"),
            ("2027-03-29T02:30:00-03:30", "2027-03-29 02:30:00 -03:30"),
        ] {
            assert_eq!(local(time), shown);
        }
        assert_eq!(to_the_second("2027-03-29 00:30:13.656 UTC"), "2027-03-29 00:30:13 UTC");
    }
}
