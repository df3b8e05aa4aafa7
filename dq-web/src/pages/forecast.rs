//! The forecast: jobs due in the next hours, by queue.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use dq_ops::{ForecastHour, Forecasts, QueueForecastView};

use super::chart::{Chart, bars};
use super::chrome::{Chrome, PageRequest, render};
use super::format::{minute, number};
use crate::app::{App, DAY};
use crate::problem::Result;

/// Selectable windows, in days.
const WINDOWS: [(&str, u32); 3] = [("1d", 1), ("3d", 3), ("7d", 7)];

/// Maximum number of queues on the page, busiest first.
const MAX_QUEUES: usize = 50;

#[derive(Template)]
#[template(path = "forecast.html")]
struct Page {
    c: Chrome,
    /// Address, name and whether it is shown.
    tabs: [(String, String, bool); 3],
    all: Option<Chart>,
    queues: Vec<(QueueForecastView, Chart)>,
    omitted: usize,
    is_over: bool,
    has_groups: bool,
}

/// `GET forecast?window=`
pub(super) async fn page(State(app): State<App>, request: PageRequest) -> Result<Response> {
    let t = request.t();
    let asked = request.param("window").unwrap_or_default();
    let window = WINDOWS.into_iter().find(|(name, _)| *name == asked).unwrap_or(WINDOWS[0]);
    let forecasts = app.forecasts(&request.session, DAY * window.1).await?;
    let c = request.chrome(t.forecast, forecasts.at);
    let tabs = WINDOWS.map(|(name, days)| {
        let text = format!("{} {}", days, if days == 1 { t.day } else { t.days });
        (c.link("forecast", &[("window", name)]), text, name == window.0)
    });
    let mut queues = forecasts.queues.clone();
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.due() + queue.overdue));
    let omitted = queues.len().saturating_sub(MAX_QUEUES);
    queues.truncate(MAX_QUEUES);
    let chart = |queue: QueueForecastView| {
        let chart = hours(&c, &queue.hours, queue.paused);
        (queue, chart)
    };
    let queues: Vec<_> = queues.into_iter().map(chart).collect();
    let is_over = queues.iter().flat_map(|(_, chart)| &chart.bars).any(|bar| bar.class == "over");
    let has_groups = queues.iter().any(|(queue, _)| {
        queue.limits.as_ref().is_some_and(|limits| limits.group_max_running.is_some())
    });
    let all = all(&c, &forecasts);
    render(StatusCode::OK, &Page { c, tabs, all, queues, omitted, is_over, has_groups })
}

/// Charts all queues together; `None` if nothing is due.
fn all(c: &Chrome, forecasts: &Forecasts) -> Option<Chart> {
    let mut sums = forecasts.queues.first()?.hours.clone();
    for (position, sum) in sums.iter_mut().enumerate() {
        let hours = forecasts.queues.iter().filter_map(|queue| queue.hours.get(position));
        (sum.due, sum.backlog) = (hours.map(|hour| hour.due).sum(), None);
    }
    Some(hours(c, &sums, false))
}

/// Charts hours. A paused queue's backlog does not count as overload.
fn hours(c: &Chrome, hours: &[ForecastHour], paused: bool) -> Chart {
    let counts: Vec<u64> = hours.iter().map(|hour| hour.due).collect();
    let title = |position: usize, count: u64| {
        let hour = &hours[position];
        let backlog = hour.backlog.filter(|backlog| *backlog > 0);
        let backlog = backlog.map(|left| format!(" · {} {}", number(left), c.t.left_over));
        format!("{}: {}{}", minute(hour.from), number(count), backlog.unwrap_or_default())
    };
    let mut bars = bars(&counts, title);
    for (bar, hour) in bars.iter_mut().zip(hours) {
        if !paused && hour.backlog.is_some_and(|backlog| backlog > 0) {
            "over".clone_into(&mut bar.class);
        }
    }
    let (total, note) = (number(counts.iter().sum()), String::new());
    Chart { bars, title: c.t.all_queues, total, labels: labels(c, hours), note }
}

/// Labels the first hour, the last, and three between.
fn labels(c: &Chrome, hours: &[ForecastHour]) -> Vec<String> {
    let last = hours.len().saturating_sub(1);
    // A window of days gets dates, a window of hours gets times.
    let shown = if last > 48 { 5..10 } else { 11..16 };
    let label = |position: usize| {
        let text = hours.get(position).map(|hour| minute(hour.from)).unwrap_or_default();
        text.get(shown.clone()).unwrap_or(&text).to_owned()
    };
    let later = (1..=4).map(|part| label(last * part / 4));
    [c.t.now.to_owned()].into_iter().chain(later).collect()
}
