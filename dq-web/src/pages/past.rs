//! Charts of the last hour and day, of which this server knows the time that it watched.

use dq_core::QueueName;
use dq_ops::{Past, PastSlot, PastWindow};

use super::chart::{Chart, Rect, series};
use super::chrome::{Chrome, PageRequest};
use super::format::{minute, number};

#[derive(Debug)]
pub(super) struct PastCharts {
    /// Name, address and whether it is shown.
    pub(super) windows: [(&'static str, String, bool); 2],
    pub(super) charts: Vec<Chart>,
    /// When this server started to watch, if that is within the window.
    pub(super) since: Option<String>,
    /// Whether the data has gaps.
    pub(super) has_gaps: bool,
}

impl PastCharts {
    /// Charts a queue, or all, for the window in `?past=`.
    pub(super) fn new(c: &Chrome, request: &PageRequest, queue: Option<&QueueName>) -> Self {
        let (window, current) = match request.param("past") {
            Some("day") => (PastWindow::Day, "day"),
            _ => (PastWindow::Hour, "hour"),
        };
        let windows = [("hour", c.t.last_hour), ("day", c.t.last_day)];
        let windows = windows.map(|(window, name)| {
            let href = request.with(c, "past", (window != "hour").then_some(window));
            (name, href, window == current)
        });
        let past = c.session.past(queue, window, c.now);
        let since = past.since.filter(|since| *since > past.from);
        Self {
            windows,
            charts: charts(c, &past),
            since: since.map(|since| {
                let relative = c.when(&since).relative;
                format!("{} {} UTC ({relative})", c.t.watched_since, minute(since))
            }),
            has_gaps: past.slots.iter().any(Option::is_none),
        }
    }
}

fn charts(c: &Chrome, past: &Past) -> Vec<Chart> {
    let t = c.t;
    let capabilities = c.session.ops().capabilities();
    let watched = || past.slots.iter().flatten();
    let count = |value: f64| number(value.round() as u64);
    let counted = |title, class, value: fn(&PastSlot) -> f64| {
        let total = count(watched().map(value).sum());
        chart(c, past, title, total, bars(c, past, class, value, &count))
    };
    let mut charts = Vec::new();
    if capabilities.totals {
        charts.push(counted(t.done_jobs, "done", |slot| slot.done));
    }
    // The rest comes from announcements.
    if capabilities.registry {
        charts.push(counted(t.failed_runs, "failed", |slot| slot.failed));
        let worst = watched().filter_map(|slot| slot.late_p99_ms).max();
        let worst = worst.map_or_else(|| "–".to_owned(), |worst| c.duration(&worst));
        let late = |slot: &PastSlot| slot.late_p99_ms.unwrap_or(0) as f64;
        let duration = |millis: f64| c.duration(&(millis as u64));
        let bars = bars(c, past, "lateness", late, &duration);
        charts.push(chart(c, past, t.lateness, worst, bars));
    }
    charts
}

/// Draws one number of each slot; `text` formats it for the bar's title.
fn bars(
    c: &Chrome,
    past: &Past,
    class: &'static str,
    number_of: impl Fn(&PastSlot) -> f64,
    text: &dyn Fn(f64) -> String,
) -> Vec<Rect> {
    let numbers: Vec<_> = past.slots.iter().map(|slot| slot.as_ref().map(&number_of)).collect();
    series(&numbers, class, |position, number| {
        let from = past.from + past.step * u32::try_from(position).unwrap_or(0);
        let text = number.map_or_else(|| c.t.not_watched.to_owned(), text);
        format!("{} UTC: {text}", minute(from).get(11..).unwrap_or_default())
    })
}

fn chart(c: &Chrome, past: &Past, title: &'static str, total: String, bars: Vec<Rect>) -> Chart {
    let length = past.step.as_millis() as u64 * past.slots.len() as u64;
    let begin = format!("{}{}{}", c.t.ago_before, c.duration(&length), c.t.ago_after);
    Chart { bars, title, total, labels: vec![begin, c.t.now.to_owned()], note: String::new() }
}
