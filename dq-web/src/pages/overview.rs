//! All queues at a glance: problems first.

use std::cmp::Reverse;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::Timestamp;
use dq_ops::{Overview, QueueSummary};

use super::chart::{Chart, Rect, bars, shares};
use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, duration, number, rate};
use super::past::PastCharts;
use crate::app::{App, DayAhead};

/// Hours in a chart from [`Chart::hours`]. `App::day_ahead` and the labels and title there
/// hard-code 24.
const HOURS: usize = 24;

/// Lateness in milliseconds that marks a queue or job as late, whatever its objective.
pub(super) const LATE_MS: u64 = 1_000;

/// How long a job may wait for a runner before its queue has a problem. In a healthy queue, all
/// slots are busy now and then.
const WAITS_MS: u64 = 10_000;

/// Maximum number of queues on the page, unless you ask for all.
const MANY: usize = 50;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    c: Chrome,
    tiles: Vec<Tile>,
    past: PastCharts,
    queues: Queues,
}

struct Queues {
    /// The queue count. `troubled` counts queues with a problem.
    number: String,
    troubled: usize,
    find: String,
    /// Page parameters that the filter keeps.
    kept: Vec<(&'static str, String)>,
    clear: Option<String>,
    columns: Vec<Column>,
    rows: Vec<QueueRow>,
    /// Address and count of all queues, if the page shows only some.
    all: Option<(String, String)>,
    is_empty: bool,
}

struct Column {
    name: &'static str,
    href: String,
    /// The `aria-sort` value, if the table is sorted by this column.
    sorted: Option<&'static str>,
    is_number: bool,
}

#[derive(Debug)]
pub(super) struct Tile {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) note: String,
    pub(super) href: Option<String>,
}

impl Chart {
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
            bars: bars(counts, title),
            title: c.t.due_from_now,
            total: number(counts.iter().sum()),
            labels: [0, 12, 24].map(label).to_vec(),
            note: String::new(),
        }
    }

    /// Charts the next day for all queues, or for the queues with the most scheduled jobs.
    fn day_ahead(c: &Chrome, ahead: &DayAhead) -> Self {
        let note = match ahead.omitted {
            0 => String::new(),
            omitted => format!("{} {}", number(omitted as u64), c.t.small_queues_left_out),
        };
        Self { note, ..Self::hours(c, &ahead.counts) }
    }
}

struct QueueRow {
    name: String,
    href: String,
    paused: bool,
    unserved: bool,
    /// How long the oldest job waits, if too long.
    waits: Option<String>,
    /// The cause, if the lateness objective is missed.
    missed: Option<&'static str>,
    shares: Vec<Rect>,
    counts: Vec<Count>,
    lateness: Option<String>,
    is_late: bool,
    per_minute: String,
    next_due: Option<When>,
}

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
    // The jobs of reserved queues belong to schedules, which have their own page.
    overview.queues.retain(|queue| !queue.queue.is_reserved());
    let mut past = PastCharts::new(&chrome, &request, None, overview.at);
    let ahead = app.day_ahead(&request.session, &overview).await;
    past.charts.extend(ahead.map(|ahead| Chart::day_ahead(&chrome, &ahead)));
    let page = Page {
        tiles: tiles(&chrome, &overview),
        past,
        queues: queues(&chrome, &request, &overview),
        c: chrome,
    };
    render(StatusCode::OK, &page)
}

/// A queue's problem, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Jobs are due, and no runner serves them.
    NoRunner,
    /// Jobs start late, or wait for long.
    Late,
    Dead,
    /// Jobs wait in a paused queue, or in one without a runner.
    Stopped,
    None,
}

impl Trouble {
    fn of(queue: &QueueSummary) -> Self {
        let missed = queue.objective.as_ref().is_some_and(|objective| objective.missed);
        if queue.runners == Some(0) && queue.ready > 0 {
            Self::NoRunner
        } else if missed || is_late(queue) || (waits_long(queue) && !queue.paused) {
            Self::Late
        } else if queue.dead > 0 {
            Self::Dead
        } else if queue.scheduled + queue.ready > 0 && (queue.paused || queue.runners == Some(0)) {
            Self::Stopped
        } else {
            Self::None
        }
    }
}

fn is_late(queue: &QueueSummary) -> bool {
    queue.lateness.is_some_and(|lateness| lateness.p99_ms >= LATE_MS)
}

fn waits_long(queue: &QueueSummary) -> bool {
    queue.oldest_ready_ms >= WAITS_MS
}

/// Sorts queues that arrive in name order.
fn sort(queues: &mut [&QueueSummary], by: &str) {
    match by {
        "name" => {}
        "scheduled" => queues.sort_by_key(|queue| Reverse(queue.scheduled)),
        "ready" => queues.sort_by_key(|queue| Reverse(queue.ready)),
        "running" => queues.sort_by_key(|queue| Reverse(queue.running)),
        "dead" => queues.sort_by_key(|queue| Reverse(queue.dead)),
        "lateness" => queues.sort_by_key(|queue| Reverse(queue.lateness.map(|late| late.p99_ms))),
        "rate" => queues.sort_by_key(|queue| Reverse(queue.lateness.map(|runs| runs.count))),
        "due" => queues.sort_by_key(|queue| (queue.next_due.is_none(), queue.next_due)),
        _ => queues.sort_by_key(|queue| {
            let trouble = Trouble::of(queue);
            let waits = if trouble == Trouble::None { 0 } else { queue.oldest_ready_ms / WAITS_MS };
            (trouble, Reverse(waits), Reverse(queue.dead))
        }),
    }
}

fn queues(c: &Chrome, request: &PageRequest, overview: &Overview) -> Queues {
    let t = c.t;
    let find = request.param("find").unwrap_or_default();
    let wanted = find.trim().to_lowercase();
    let all = &overview.queues;
    let matches = |queue: &&QueueSummary| queue.queue.as_str().to_lowercase().contains(&wanted);
    let mut found: Vec<&QueueSummary> = all.iter().filter(matches).collect();
    let by = request.param("sort").unwrap_or_default();
    sort(&mut found, by);
    let is_cut = found.len() > MANY && request.param("all").is_none();
    let all_found = is_cut.then(|| (request.with(c, "all", Some("1")), number(found.len() as u64)));
    if is_cut {
        found.truncate(MANY);
    }
    let column = |id: &str, name, is_number| Column {
        name,
        // A second click leads back to the problems.
        href: request.with(c, "sort", Some(id).filter(|id| *id != by)),
        sorted: (id == by).then_some(match id {
            "name" | "due" => "ascending",
            _ => "descending",
        }),
        is_number,
    };
    let kept = ["sort", "past", "lang"];
    let kept = kept.into_iter().filter_map(|name| Some((name, request.param(name)?.to_owned())));
    Queues {
        number: number(all.len() as u64),
        troubled: all.iter().filter(|queue| Trouble::of(queue) != Trouble::None).count(),
        find: find.to_owned(),
        kept: kept.collect(),
        clear: (!find.is_empty()).then(|| request.with(c, "find", None)),
        columns: vec![
            column("name", t.queue, false),
            column("scheduled", t.scheduled, true),
            column("ready", t.ready, true),
            column("running", t.running, true),
            column("dead", t.dead, true),
            column("lateness", t.lateness, true),
            column("rate", t.per_minute, true),
            column("due", t.next_due, true),
        ],
        rows: found.into_iter().map(|queue| row(c, overview, queue)).collect(),
        all: all_found,
        is_empty: all.is_empty(),
    }
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
    let tile = |class, name, value, note: String| {
        let is_state = matches!(class, "scheduled" | "ready" | "running");
        let href = is_state.then(|| c.link("jobs", &[("state", class)]));
        Tile { class, name, value, note, href }
    };
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

/// Returns the earliest due time of scheduled jobs, if known. A queue reports only its earliest due
/// time, which is a ready job's if there is one.
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
        waits: waits_long(queue).then(|| duration(queue.oldest_ready_ms, c.lang)),
        missed: queue
            .objective
            .as_ref()
            .filter(|objective| objective.missed)
            .map(|objective| c.t.lateness_cause(objective.cause)),
        shares: shares(&states.map(|(state, _, count)| (state, count))),
        counts: counts.into(),
        lateness: queue.lateness.map(|lateness| duration(lateness.p99_ms, c.lang)),
        is_late: is_late(queue),
        per_minute: rate(queue.runs_per_minute()),
        next_due: When::some(queue.next_due, overview.at, c.lang),
    }
}

/// Returns the time window of [`Chart::hours`], and its bar count.
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
    fn what_is_wrong_comes_first_and_the_worst_before_the_rest() {
        let time = "2026-01-01T00:00:00Z";
        let named = |name: &str, scheduled, ready| {
            let mut queue = queue(scheduled, ready, time);
            queue.queue = dq_core::QueueName::new(name).unwrap();
            queue.runners = Some(1);
            queue
        };
        let mut dead = named("a-dead", 0, 0);
        dead.dead = 2;
        let fine = named("b-fine", 5, 1);
        let mut late = named("c-late", 0, 3);
        late.oldest_ready_ms = WAITS_MS;
        let mut alone = named("d-alone", 0, 1);
        alone.runners = Some(0);
        let mut paused = named("e-paused", 1, 0);
        paused.paused = true;
        let mut later = named("f-later", 0, 3);
        later.oldest_ready_ms = 3 * WAITS_MS;
        let queues = [dead, fine, late, alone, paused, later];
        let order = |by| {
            let mut queues: Vec<_> = queues.iter().collect();
            sort(&mut queues, by);
            queues.iter().map(|queue| queue.queue.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(order(""), ["d-alone", "f-later", "c-late", "a-dead", "e-paused", "b-fine"]);
        assert_eq!(order("name")[0], "a-dead");
        assert_eq!(order("scheduled")[..2], ["b-fine", "e-paused"]);
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
