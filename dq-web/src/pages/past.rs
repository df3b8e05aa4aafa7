//! Charts of the last hour and day, as far as this server watched.

use dq_core::{QueueName, Timestamp};
use dq_ops::{Past, PastSlot, PastWindow};

use super::chart::{Chart, Rect, series};
use super::chrome::{Chrome, PageRequest};
use super::format::{duration, number};

#[derive(Debug)]
pub(super) struct PastCharts {
    pub(super) windows: Vec<Window>,
    pub(super) charts: Vec<Chart>,
    /// When this server started to watch, if that is within the window.
    pub(super) since: Option<String>,
    /// Whether the data has gaps.
    pub(super) has_gaps: bool,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) name: &'static str,
    pub(super) href: String,
    pub(super) is_current: bool,
}

impl PastCharts {
    /// Charts a queue, or all, for the window in `?past=`.
    pub(super) fn new(
        c: &Chrome,
        request: &PageRequest,
        queue: Option<&QueueName>,
        now: Timestamp,
    ) -> Self {
        let (window, current) = match request.param("past") {
            Some("day") => (PastWindow::Day, "day"),
            _ => (PastWindow::Hour, "hour"),
        };
        let windows = [("hour", c.t.last_hour), ("day", c.t.last_day)];
        let windows = windows.map(|(window, name)| Window {
            name,
            href: request.with(c, "past", (window != "hour").then_some(window)),
            is_current: window == current,
        });
        let past = c.session.past(queue, window, now);
        let since = past.since.filter(|since| *since > past.from);
        Self {
            windows: windows.into(),
            charts: charts(c, &past),
            since: since.map(|since| {
                let since = c.when(since, now);
                // To the minute.
                let minute = since.exact.get(..16).unwrap_or(&since.exact);
                format!("{} {minute} UTC ({})", c.t.watched_since, since.relative)
            }),
            has_gaps: past.slots.iter().any(Option::is_none),
        }
    }
}

fn charts(c: &Chrome, past: &Past) -> Vec<Chart> {
    let t = c.t;
    let capabilities = c.session.ops().capabilities();
    let sum = |value: fn(&PastSlot) -> f64| {
        let sum: f64 = past.slots.iter().flatten().map(value).sum();
        number(sum.round() as u64)
    };
    let count = |value: f64| number(value.round() as u64);
    let late = |slot: &PastSlot| slot.late_p99_ms.unwrap_or(0) as f64;
    let worst = past.slots.iter().flatten().filter_map(|slot| slot.late_p99_ms).max();
    let in_time = |millis: u64| duration(millis, c.lang);
    let done = || {
        let bars = bars(c, past, "done", |slot| slot.done, &count);
        chart(c, past, t.done_jobs, sum(|slot| slot.done), bars)
    };
    let failed = || {
        let bars = bars(c, past, "failed", |slot| slot.failed, &count);
        chart(c, past, t.failed_runs, sum(|slot| slot.failed), bars)
    };
    let lateness = || {
        let bars = bars(c, past, "lateness", late, &|value| in_time(value as u64));
        chart(c, past, t.lateness, worst.map_or_else(|| "–".to_owned(), in_time), bars)
    };
    let mut charts = Vec::new();
    charts.extend(capabilities.totals.then(done));
    // The rest comes from announcements.
    charts.extend(capabilities.registry.then(failed));
    charts.extend(capabilities.registry.then(lateness));
    charts
}

fn bars(
    c: &Chrome,
    past: &Past,
    class: &'static str,
    value: impl Fn(&PastSlot) -> f64,
    text: &dyn Fn(f64) -> String,
) -> Vec<Rect> {
    let values: Vec<_> = past.slots.iter().map(|slot| slot.as_ref().map(&value)).collect();
    let step = i64::try_from(past.step.as_millis()).unwrap_or(i64::MAX);
    series(&values, class, |position, value| {
        let from = past.from.as_millis() + step * position as i64;
        let from = Timestamp::from_millis(from).to_string();
        // From 2026-01-31T10:15:00Z.
        let time = from.get(11..16).unwrap_or_default();
        match value {
            Some(value) => format!("{time} UTC: {}", text(value)),
            None => format!("{time} UTC: {}", c.t.not_watched),
        }
    })
}

fn chart(c: &Chrome, past: &Past, title: &'static str, total: String, bars: Vec<Rect>) -> Chart {
    let length = past.step.as_millis() as u64 * past.slots.len() as u64;
    let begin = format!("{}{}{}", c.t.ago_before, duration(length, c.lang), c.t.ago_after);
    Chart { bars, title, total, labels: vec![begin, c.t.now.to_owned()], note: String::new() }
}
