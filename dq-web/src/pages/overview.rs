//! All queues at a glance: problems first.

use std::cmp::Reverse;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::Timestamp;
use dq_ops::{Overview, QueueSummary};

use super::chart::{Chart, Rect, bars, shares};
use super::chrome::{Chrome, PageRequest, render};
use super::format::{number, rate};
use super::past::PastCharts;
use crate::app::{App, DayAhead};
use crate::problem::Result;

/// Hours in a chart from [`Chart::hours`]. `App::day_ahead` and the labels and title there
/// hard-code 24.
pub(super) const HOURS: usize = 24;

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
    rows: Vec<QueueSummary>,
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
            let [from, to] = [hour, hour + 1].map(|hour| c.duration(&(hour as u64 * 3_600_000)));
            format!("{}: {from} – {to}", number(count))
        };
        let label = |hour: u64| {
            let text = c.duration(&(hour * 3_600_000));
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

/// `GET ./`
pub(super) async fn page(State(app): State<App>, request: PageRequest) -> Result<Response> {
    let mut overview = request.session.overview().await?;
    let c = request.chrome(request.t().overview, overview.at);
    // The jobs of reserved queues belong to schedules, which have their own page.
    overview.queues.retain(|queue| !queue.queue.is_reserved());
    let mut past = PastCharts::new(&c, &request, None);
    let ahead = app.day_ahead(&request.session, &overview).await;
    past.charts.extend(ahead.map(|ahead| Chart::day_ahead(&c, &ahead)));
    let tiles = tiles(&c, &overview);
    let queues = queues(&c, &request, overview.queues);
    render(StatusCode::OK, &Page { c, tiles, past, queues })
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

pub(super) fn is_late(queue: &QueueSummary) -> bool {
    queue.lateness.is_some_and(|lateness| lateness.p99_ms >= LATE_MS)
}

pub(super) fn waits_long(queue: &QueueSummary) -> bool {
    queue.oldest_ready_ms >= WAITS_MS
}

/// Sorts queues that arrive in name order.
fn sort(queues: &mut [QueueSummary], by: &str) {
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

fn queues(c: &Chrome, request: &PageRequest, all: Vec<QueueSummary>) -> Queues {
    let t = c.t;
    let find = request.param("find").unwrap_or_default();
    let wanted = find.trim().to_lowercase();
    let count = all.len();
    let troubled = all.iter().filter(|queue| Trouble::of(queue) != Trouble::None).count();
    let mut rows = all;
    rows.retain(|queue| queue.queue.as_str().to_lowercase().contains(&wanted));
    let by = request.param("sort").unwrap_or_default();
    sort(&mut rows, by);
    let is_cut = rows.len() > MANY && request.param("all").is_none();
    let all = is_cut.then(|| (request.with(c, "all", Some("1")), number(rows.len() as u64)));
    if is_cut {
        rows.truncate(MANY);
    }
    let column = |(id, name): (&str, _)| Column {
        name,
        // A second click leads back to the problems.
        href: request.with(c, "sort", Some(id).filter(|id| *id != by)),
        sorted: (id == by).then_some(match id {
            "name" | "due" => "ascending",
            _ => "descending",
        }),
        is_number: id != "name",
    };
    let columns = [
        ("name", t.queue),
        ("scheduled", t.scheduled),
        ("ready", t.ready),
        ("running", t.running),
        ("dead", t.dead),
        ("lateness", t.lateness),
        ("rate", t.per_minute),
        ("due", t.next_due),
    ];
    let kept = ["sort", "past", "lang"];
    let kept = kept.into_iter().filter_map(|name| Some((name, request.param(name)?.to_owned())));
    Queues {
        number: number(count as u64),
        troubled,
        find: find.to_owned(),
        kept: kept.collect(),
        clear: (!find.is_empty()).then(|| request.with(c, "find", None)),
        columns: columns.map(column).into(),
        rows,
        all,
        is_empty: count == 0,
    }
}

fn tiles(c: &Chrome, overview: &Overview) -> Vec<Tile> {
    let t = c.t;
    let queues = &overview.queues;
    let worst = queues.iter().filter_map(|queue| Some((queue.lateness?.p99_ms, &queue.queue)));
    let worst = worst.max();
    let per_minute = queues.iter().map(QueueSummary::runs_per_minute).sum::<f64>();
    let mut tiles = c.state_tiles(None, queues);
    if let Some(next) = next_scheduled(queues) {
        tiles[0].note = format!("{} {}", t.next_due, c.when(&next).relative);
    }
    // The runners share slots among queues, so these do not add up.
    tiles[2].note = c.free_slots(overview.free_slots);
    tiles[3].href = Some(c.page("dead"));
    tiles.extend([
        Tile {
            class: "lateness",
            name: t.lateness,
            value: worst.map_or_else(|| "–".to_owned(), |(p99, _)| c.duration(&p99)),
            note: worst.map(|(_, queue)| queue.to_string()).unwrap_or_default(),
            href: None,
        },
        Tile {
            class: "rate",
            name: t.per_minute,
            value: rate(per_minute),
            note: t.last_minutes.to_owned(),
            href: None,
        },
    ]);
    tiles
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

impl Chrome {
    /// Returns each live state with its name and job count.
    pub(super) fn states(&self, queue: &QueueSummary) -> [(&'static str, &'static str, u64); 4] {
        let t = self.t;
        [
            ("scheduled", t.scheduled, queue.scheduled),
            ("ready", t.ready, queue.ready),
            ("running", t.running, queue.running),
            ("dead", t.dead, queue.dead),
        ]
    }

    /// Returns a tile for each live state, of one queue or all.
    pub(super) fn state_tiles(&self, queue: Option<&str>, queues: &[QueueSummary]) -> Vec<Tile> {
        let oldest = queues.iter().map(|queue| queue.oldest_ready_ms).max().unwrap_or(0);
        let (t, free) = (self.t, queues.first().and_then(|queue| queue.free_slots));
        let sum = |count: fn(&QueueSummary) -> u64| queues.iter().map(count).sum::<u64>();
        let tile = |(class, name, count, note): (&'static str, _, u64, String)| {
            let params = queue.map(|queue| ("queue", queue)).into_iter().chain([("state", class)]);
            let href = Some(self.link("jobs", &params.collect::<Vec<_>>()));
            Tile { class, name, value: number(count), note, href }
        };
        let oldest = match oldest {
            0 => String::new(),
            oldest => format!("{} {}", t.oldest, self.duration(&oldest)),
        };
        let tiles = [
            ("scheduled", t.scheduled, sum(|queue| queue.scheduled), String::new()),
            ("ready", t.ready, sum(|queue| queue.ready), oldest),
            ("running", t.running, sum(|queue| queue.running), self.free_slots(free)),
            ("dead", t.dead, sum(|queue| queue.dead), String::new()),
        ];
        tiles.map(tile).into()
    }

    pub(super) fn shares(&self, queue: &QueueSummary) -> Vec<Rect> {
        shares(&self.states(queue).map(|(state, _, count)| (state, count)))
    }

    pub(super) fn runs_per_minute(&self, queue: &QueueSummary) -> String {
        rate(queue.runs_per_minute())
    }

    /// The cause, if the queue misses its lateness objective.
    pub(super) fn missed(&self, queue: &QueueSummary) -> Option<&'static str> {
        let missed = queue.objective.as_ref().filter(|objective| objective.missed)?;
        Some(self.t.lateness_cause(missed.cause))
    }

    fn free_slots(&self, free: Option<u64>) -> String {
        free.map(|free| format!("{} {}", number(free), self.t.of_slots)).unwrap_or_default()
    }
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
            let mut queues = queues.to_vec();
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
