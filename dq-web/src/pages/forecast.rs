//! What is due in the next hours, by queue.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::Timestamp;
use dq_ops::{ForecastHour, Forecasts, QueueForecastView};

use super::chart::{HEIGHT, Rect, WIDTH, bars};
use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, number, rate};
use crate::app::App;

const DAY: u64 = 86_400;

/// Selectable windows, in days.
const WINDOWS: [(&str, u64); 3] = [("1d", 1), ("3d", 3), ("7d", 7)];

/// Maximum number of queues on the page, busiest first.
const MAX_QUEUES: usize = 50;

#[derive(Template)]
#[template(path = "forecast.html")]
struct Page {
    c: Chrome,
    tabs: Vec<Tab>,
    all: Option<Bars>,
    queues: Vec<QueueBars>,
    omitted: usize,
    is_over: bool,
}

struct Tab {
    href: String,
    name: String,
    is_current: bool,
}

struct Bars {
    total: String,
    rects: Vec<Rect>,
    labels: Vec<String>,
}

/// A queue's chart, and what its runners can do.
struct QueueBars {
    name: String,
    href: String,
    paused: bool,
    bars: Bars,
    overdue: Option<String>,
    capacity: Option<String>,
    peak: Option<Peak>,
}

struct Peak {
    due: String,
    at: When,
    drained: Option<When>,
}

/// `GET forecast?window=`
pub(super) async fn page(State(app): State<App>, request: PageRequest) -> Response {
    let mut c = request.chrome("forecast");
    c.title = c.t.forecast.to_owned();
    let asked = request.param("window").unwrap_or_default();
    let window = WINDOWS.iter().find(|(name, _)| *name == asked).unwrap_or(&WINDOWS[0]);
    let length = Duration::from_secs(window.1 * DAY);
    let forecasts = match app.forecasts(&request.session, length).await {
        Ok(forecasts) => forecasts,
        Err(error) => return problem(c, error.into(), None),
    };
    let tabs = WINDOWS.map(|(name, days)| Tab {
        href: c.link("forecast", &[("window", name)]),
        name: format!("{} {}", days, if days == 1 { c.t.day } else { c.t.days }),
        is_current: name == window.0,
    });
    let mut sorted: Vec<_> = forecasts.queues.iter().collect();
    sorted.sort_by_key(|queue| std::cmp::Reverse(queue.due() + queue.overdue));
    let queues: Vec<_> =
        sorted.iter().take(MAX_QUEUES).map(|queue| queue_bars(&c, queue, forecasts.at)).collect();
    let is_over = |queue: &QueueBars| queue.bars.rects.iter().any(|rect| rect.class == "over");
    let page = Page {
        tabs: tabs.into(),
        all: all(&c, &forecasts),
        omitted: sorted.len() - queues.len(),
        is_over: queues.iter().any(is_over),
        queues,
        c,
    };
    render(StatusCode::OK, &page)
}

/// Charts all queues together; `None` if nothing is due.
fn all(c: &Chrome, forecasts: &Forecasts) -> Option<Bars> {
    let mut sums = forecasts.queues.first()?.hours.clone();
    for hour in &mut sums {
        (hour.due, hour.backlog) = (0, None);
    }
    for queue in &forecasts.queues {
        for (sum, hour) in sums.iter_mut().zip(&queue.hours) {
            sum.due += hour.due;
        }
    }
    Some(hours(c, &sums, false))
}

fn queue_bars(c: &Chrome, queue: &QueueForecastView, now: Timestamp) -> QueueBars {
    let name = queue.queue.as_str();
    QueueBars {
        name: name.to_owned(),
        href: c.link("queue", &[("name", name)]),
        paused: queue.paused,
        bars: hours(c, &queue.hours, queue.paused),
        overdue: Some(queue.overdue).filter(|overdue| *overdue > 0).map(number),
        capacity: queue.capacity_per_minute.map(rate),
        peak: queue.peak.map(|peak| Peak {
            due: number(peak.due),
            at: c.when(peak.from, now),
            drained: peak.drained_by.map(|drained| c.when(drained, now)),
        }),
    }
}

/// Charts hours. A paused queue's backlog does not count as overload.
fn hours(c: &Chrome, hours: &[ForecastHour], paused: bool) -> Bars {
    let counts: Vec<u64> = hours.iter().map(|hour| hour.due).collect();
    let title = |position: usize, count: u64| {
        let hour = &hours[position];
        let backlog = hour.backlog.filter(|backlog| *backlog > 0);
        let backlog = backlog.map(|left| format!(" · {} {}", number(left), c.t.left_over));
        format!("{}: {}{}", clock(hour.from), number(count), backlog.unwrap_or_default())
    };
    let mut rects = bars(&counts, title);
    for (rect, hour) in rects.iter_mut().zip(hours) {
        if !paused && hour.backlog.is_some_and(|backlog| backlog > 0) {
            rect.class = "over";
        }
    }
    Bars { total: number(counts.iter().sum()), rects, labels: labels(c, hours) }
}

/// Labels the first hour, the last, and three between.
fn labels(c: &Chrome, hours: &[ForecastHour]) -> Vec<String> {
    let last = hours.len().saturating_sub(1);
    // A window of days gets dates, a window of hours gets times.
    let label = |hour: &ForecastHour| match (last > 48, clock(hour.from)) {
        (true, text) => text.get(5..10).unwrap_or(&text).to_owned(),
        (false, text) => text.get(11..16).unwrap_or(&text).to_owned(),
    };
    let positions = (0..=4).map(|part| last * part / 4);
    let labels = positions.map(|at| if at == 0 { c.t.now.to_owned() } else { label(&hours[at]) });
    labels.collect()
}

/// Formats a UTC time to the minute, such as `2027-01-31 10:00`.
fn clock(at: Timestamp) -> String {
    let text = at.to_string().replacen('T', " ", 1);
    text.get(..16).unwrap_or(&text).to_owned()
}

const SIZE: (f64, f64) = (WIDTH, HEIGHT);
