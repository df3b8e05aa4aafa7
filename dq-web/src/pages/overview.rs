//! All queues at a glance.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::Timestamp;
use dq_ops::{Overview, QueueSummary};

use super::chart::{HEIGHT, Rect, WIDTH, bars, shares};
use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, duration, number, rate};
use crate::app::App;

/// Hours of the charts of [`Chart::hours`]. `App::forecast`, and the labels and the title there, have 24
/// written out.
const HOURS: usize = 24;

/// A p99 from which a queue is marked as late, whatever its objective, in milliseconds.
const LATE_MS: u64 = 1_000;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    c: Chrome,
    tiles: Vec<Tile>,
    rows: Vec<QueueRow>,
    chart: Option<Chart>,
}

/// A number with its name.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) note: String,
    pub(super) href: Option<String>,
}

/// A chart of bars with the texts below it.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) bars: Vec<Rect>,
    pub(super) title: &'static str,
    pub(super) total: String,
    pub(super) labels: Vec<String>,
}

impl Chart {
    /// A chart of jobs by hour.
    pub(super) fn hours(c: &Chrome, counts: &[u64]) -> Self {
        let title = |hour: usize, count: u64| {
            let (from, to) = (hour as u64 * 3_600_000, (hour as u64 + 1) * 3_600_000);
            format!("{}: {} – {}", number(count), duration(from, c.lang), duration(to, c.lang))
        };
        let label = |hour: u64| {
            let text = duration(hour * 3_600_000, c.lang);
            if hour == 0 { c.t.now.to_owned() } else { format!("+{text}") }
        };
        Self {
            width: WIDTH,
            height: HEIGHT,
            bars: bars(counts, title),
            title: c.t.due_from_now,
            total: number(counts.iter().sum()),
            labels: [0, 6, 12, 18, 24].map(label).to_vec(),
        }
    }
}

/// A line of the table.
struct QueueRow {
    name: String,
    href: String,
    paused: bool,
    unserved: bool,
    /// The cause, if the lateness objective is missed.
    missed: Option<&'static str>,
    shares: Vec<Rect>,
    counts: Vec<Count>,
    lateness: Option<String>,
    is_late: bool,
    per_minute: String,
    next_due: Option<When>,
}

/// A number of jobs with a link to them.
struct Count {
    class: &'static str,
    name: &'static str,
    value: String,
    is_zero: bool,
    href: String,
}

/// `GET ./`
pub(super) async fn page(State(app): State<App>, request: PageRequest) -> Response {
    let mut chrome = request.chrome("overview");
    chrome.title = chrome.t.overview.to_owned();
    let mut overview = match request.session.overview().await {
        Ok(overview) => overview,
        Err(error) => return problem(chrome, error.into(), None),
    };
    // The jobs of reserved queues belong to schedules, which have a page of their own.
    overview.queues.retain(|queue| !queue.queue.is_reserved());
    let forecast = app.forecast(&request.session, &overview).await;
    let chart = forecast.map(|counts| Chart::hours(&chrome, &counts));
    let rows = overview.queues.iter().map(|queue| row(&chrome, &overview, queue)).collect();
    let tiles = tiles(&chrome, &overview);
    render(StatusCode::OK, &Page { tiles, rows, chart, c: chrome })
}

fn tiles(c: &Chrome, overview: &Overview) -> Vec<Tile> {
    let sum = |count: fn(&QueueSummary) -> u64| overview.queues.iter().map(count).sum::<u64>();
    let t = c.t;
    let oldest = overview.queues.iter().map(|queue| queue.oldest_ready_ms).max().unwrap_or(0);
    let oldest = match oldest {
        0 => String::new(),
        oldest => format!("{} {}", t.oldest, duration(oldest, c.lang)),
    };
    let worst = overview
        .queues
        .iter()
        .filter_map(|queue| queue.lateness.map(|lateness| (lateness.p99_ms, queue.queue.as_str())));
    let worst = worst.max();
    let per_minute = overview.queues.iter().map(QueueSummary::runs_per_minute).sum::<f64>();
    let next = next_scheduled(&overview.queues);
    let next = next.map(|next| c.when(next, overview.at).relative).unwrap_or_default();
    let slots = overview.free_slots.map(|free| format!("{} {}", number(free), t.of_slots));
    let tile = |class, name, value, note: String| Tile { class, name, value, note, href: None };
    vec![
        tile(
            "scheduled",
            t.scheduled,
            number(sum(|queue| queue.scheduled)),
            match next.as_str() {
                "" => String::new(),
                next => format!("{} {next}", t.next_due),
            },
        ),
        tile("ready", t.ready, number(sum(|queue| queue.ready)), oldest),
        tile("running", t.running, number(sum(|queue| queue.running)), slots.unwrap_or_default()),
        Tile {
            href: Some(c.page("dead")),
            ..tile("dead", t.dead, number(sum(|queue| queue.dead)), String::new())
        },
        tile(
            "lateness",
            t.lateness,
            worst.map_or_else(|| "–".to_owned(), |(p99, _)| duration(p99, c.lang)),
            worst.map(|(_, queue)| queue.to_owned()).unwrap_or_default(),
        ),
        tile("rate", t.per_minute, rate(per_minute), t.last_minutes.to_owned()),
    ]
}

/// The earliest due time of the scheduled jobs; `None` if there are none, or it is not known: a queue
/// reports only its earliest due time, which is that of a ready job if it has any.
fn next_scheduled(queues: &[QueueSummary]) -> Option<Timestamp> {
    let with_scheduled = || queues.iter().filter(|queue| queue.scheduled > 0);
    if with_scheduled().any(|queue| queue.ready > 0) {
        return None;
    }
    with_scheduled().filter_map(|queue| queue.next_due).min()
}

fn row(c: &Chrome, overview: &Overview, queue: &QueueSummary) -> QueueRow {
    let name = queue.queue.as_str();
    let states = [
        ("scheduled", c.t.scheduled, queue.scheduled),
        ("ready", c.t.ready, queue.ready),
        ("running", c.t.running, queue.running),
        ("dead", c.t.dead, queue.dead),
    ];
    let counts = states.map(|(state, label, count)| Count {
        class: state,
        name: label,
        value: number(count),
        is_zero: count == 0,
        href: c.link("jobs", &[("queue", name), ("state", state)]),
    });
    QueueRow {
        name: name.to_owned(),
        href: c.link("queue", &[("name", name)]),
        paused: queue.paused,
        unserved: queue.runners == Some(0) && queue.scheduled + queue.ready > 0,
        missed: queue
            .objective
            .as_ref()
            .filter(|objective| objective.missed)
            .map(|objective| c.t.lateness_cause(objective.cause)),
        shares: shares(&states.map(|(state, _, count)| (state, count))),
        counts: counts.into(),
        lateness: queue.lateness.map(|lateness| duration(lateness.p99_ms, c.lang)),
        is_late: queue.lateness.is_some_and(|lateness| lateness.p99_ms >= LATE_MS),
        per_minute: rate(queue.runs_per_minute()),
        next_due: When::some(queue.next_due, overview.at, c.lang),
    }
}

/// The time window of [`Chart::hours`], and its number of bars.
pub(super) fn window() -> (Duration, usize) {
    (Duration::from_secs(3_600 * HOURS as u64), HOURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(scheduled: u64, ready: u64, next_due: &str) -> QueueSummary {
        let json = serde_json::json!({
            "queue": "Q", "scheduled": scheduled, "ready": ready, "running": 0, "dead": 0,
            "paused": false, "next_due": next_due, "oldest_ready_ms": 0,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_next_due_time_is_shown_if_it_is_that_of_a_scheduled_job() {
        let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
        let only_scheduled = [queue(1, 0, late), queue(0, 3, early), queue(2, 0, late)];
        assert_eq!(next_scheduled(&only_scheduled), only_scheduled[0].next_due);
        let also_ready = [queue(1, 1, early), queue(1, 0, late)];
        assert_eq!(next_scheduled(&also_ready), None);
        assert_eq!(next_scheduled(&[queue(0, 1, early)]), None);
    }
}
