//! All queues at a glance: tiles, charts and the table of queues.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{JobState, Timestamp};
use dq_ops::{Overview, QueueSummary};

use super::chart::{Chart, Rect, bars, shares};
use super::chrome::{Chrome, PageRequest, render};
use super::format::{number, rate};
use super::past::PastCharts;
use super::queue_table::{QueueTable, has_no_runner, is_late, waits_long};
use crate::app::{App, DayAhead};
use crate::problem::Result;

/// Hours in a chart from [`Chart::hours`]. `App::day_ahead` and the labels and title there
/// hard-code 24.
pub(super) const HOURS: usize = 24;

/// The states of jobs that stores count.
pub(super) const LIVE_STATES: [JobState; 4] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead];

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    c: Chrome,
    tiles: Vec<Tile>,
    past: PastCharts,
    queues: QueueTable,
}

/// A number with its name, such as the running jobs.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) class: String,
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

pub(super) async fn page(State(app): State<App>, request: PageRequest) -> Result<Response> {
    let mut overview = request.session.overview().await?;
    let c = request.chrome(request.t().overview, overview.at);
    // The jobs of reserved queues belong to schedules, which have their own page.
    overview.queues.retain(|queue| !queue.queue.is_reserved());
    let mut past = PastCharts::new(&c, &request, None);
    let ahead = app.day_ahead(&request.session, &overview).await;
    past.charts.extend(ahead.map(|ahead| Chart::day_ahead(&c, &ahead)));
    let tiles = tiles(&c, &overview);
    let queues = QueueTable::new(&c, &request, overview.queues);
    render(StatusCode::OK, &Page { c, tiles, past, queues })
}

/// Returns the tiles of all queues: the states, the worst lateness and the rate.
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
            class: "lateness".to_owned(),
            name: t.lateness,
            value: worst.map_or_else(|| "–".to_owned(), |(p99, _)| c.duration(&p99)),
            note: worst.map(|(_, queue)| queue.to_string()).unwrap_or_default(),
            href: None,
        },
        Tile {
            class: "rate".to_owned(),
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
    pub(super) fn state_tiles(&self, queue: Option<&str>, queues: &[QueueSummary]) -> Vec<Tile> {
        let oldest = queues.iter().map(|queue| queue.oldest_ready_ms).max().unwrap_or(0);
        let note = |state| match state {
            JobState::Ready if oldest > 0 => {
                format!("{} {}", self.t.oldest, self.duration(&oldest))
            }
            JobState::Running => self.free_slots(queues.first().and_then(|it| it.free_slots)),
            _ => String::new(),
        };
        let tile = |state: JobState| {
            let class = state.to_string();
            let params =
                queue.map(|queue| ("queue", queue)).into_iter().chain([("state", &*class)]);
            let href = Some(self.link("jobs", &params.collect::<Vec<_>>()));
            let count = queues.iter().filter_map(|queue| queue.count(state)).sum();
            let (name, note) = (self.state_name(state), note(state));
            Tile { class, name, value: number(count), note, href }
        };
        LIVE_STATES.map(tile).into()
    }

    pub(super) fn shares(&self, queue: &QueueSummary) -> Vec<Rect> {
        let share = |state: &JobState| (state.to_string(), queue.count(*state).unwrap_or(0));
        shares(LIVE_STATES.iter().map(share))
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
    fn the_next_due_time_is_shown_if_it_is_that_of_a_scheduled_job() {
        let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
        let only_scheduled = [queue(1, 0, late), queue(0, 3, early), queue(2, 0, late)];
        assert_eq!(next_scheduled(&only_scheduled), only_scheduled[0].next_due);
        let also_ready = [queue(1, 1, early), queue(1, 0, late)];
        assert_eq!(next_scheduled(&also_ready), None);
        assert_eq!(next_scheduled(&[queue(0, 1, early)]), None);
    }
}
