//! One queue.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::QueueName;
use dq_ops::{ObjectiveView, QueueSummary, RunnerSummary};

use super::chart::Chart;
use super::chrome::{Chrome, PageRequest, problem, render};
use super::dead::{GroupRow, group_rows};
use super::format::{When, duration, number, rate};
use super::overview::{Tile, window};
use super::past::PastCharts;

#[derive(Template)]
#[template(path = "queue.html")]
struct Page {
    c: Chrome,
    name: String,
    paused: bool,
    /// The cause, if the lateness objective is missed.
    missed: Option<&'static str>,
    tiles: Vec<Tile>,
    facts: Vec<(&'static str, String)>,
    next_due: Option<When>,
    past: PastCharts,
    runners: Vec<(String, String)>,
    groups: Vec<GroupRow>,
    links: Vec<(&'static str, String)>,
}

/// `GET queue?name=`
pub(super) async fn page(request: PageRequest) -> Response {
    let mut c = request.chrome("overview");
    let session = &request.session;
    let name = request.param("name").unwrap_or_default();
    c.title = name.to_owned();
    let queue = match QueueName::new(name) {
        Ok(queue) => queue,
        Err(error) => return problem(c, error.into(), None),
    };
    let (summary, now) = match (session.queue(&queue).await, session.now().await) {
        (Ok(summary), Ok(now)) => (summary, now),
        (Err(error), _) | (_, Err(error)) => return problem(c, error.into(), None),
    };
    let (hours, steps) = window();
    // The page omits what the store does not support.
    let forecast = session.forecast(&queue, hours, steps).await.ok();
    let mut past = PastCharts::new(&c, &request, Some(&queue), now);
    past.charts.extend(forecast.map(|forecast| Chart::hours(&c, &forecast.counts)));
    let runners = session.runners().await.unwrap_or_default();
    let runners = runners.iter().filter_map(|runner| served(&c, runner, &summary)).collect();
    let groups = match summary.dead {
        0 => Vec::new(),
        _ => session.dead(&queue).await.map(|dead| dead.groups).unwrap_or_default(),
    };
    let groups = group_rows(&c, &queue, groups.into_iter().take(5), now);
    let state = |state| c.link("jobs", &[("queue", name), ("state", state)]);
    let links = vec![
        (c.t.scheduled, state("scheduled")),
        (c.t.ready, state("ready")),
        (c.t.running, state("running")),
        (c.t.dead, state("dead")),
        (c.t.ended, state("ended")),
    ];
    let page = Page {
        name: name.to_owned(),
        paused: summary.paused,
        missed: summary
            .objective
            .as_ref()
            .filter(|objective| objective.missed)
            .map(|objective| c.t.lateness_cause(objective.cause)),
        tiles: tiles(&c, &summary),
        facts: facts(&c, &summary),
        next_due: When::some(summary.next_due, now, c.lang),
        past,
        runners,
        groups,
        links,
        c,
    };
    render(StatusCode::OK, &page)
}

fn tiles(c: &Chrome, queue: &QueueSummary) -> Vec<Tile> {
    let t = c.t;
    let name = queue.queue.as_str();
    let tile = |class, name_of_tile, count, note: String| Tile {
        class,
        name: name_of_tile,
        value: number(count),
        note,
        href: Some(c.link("jobs", &[("queue", name), ("state", class)])),
    };
    let oldest = match queue.oldest_ready_ms {
        0 => String::new(),
        oldest => format!("{} {}", t.oldest, duration(oldest, c.lang)),
    };
    let slots = queue.free_slots.map(|free| format!("{} {}", number(free), t.of_slots));
    vec![
        tile("scheduled", t.scheduled, queue.scheduled, String::new()),
        tile("ready", t.ready, queue.ready, oldest),
        tile("running", t.running, queue.running, slots.unwrap_or_default()),
        tile("dead", t.dead, queue.dead, String::new()),
    ]
}

fn facts(c: &Chrome, queue: &QueueSummary) -> Vec<(&'static str, String)> {
    let t = c.t;
    let quantiles = |quantiles: Option<dq_ops::Quantiles>| match quantiles {
        Some(quantiles) => {
            let (p50, p99) =
                (duration(quantiles.p50_ms, c.lang), duration(quantiles.p99_ms, c.lang));
            format!("{} {p50} · {} {p99}", t.p50, t.p99)
        }
        None => "–".to_owned(),
    };
    let total = |total: Option<u64>| total.map_or_else(|| "–".to_owned(), number);
    let runners = queue.runners.map_or_else(|| t.not_known.to_owned(), number);
    let mut facts = vec![
        (t.runners, runners),
        (t.per_minute, rate(queue.runs_per_minute())),
        (t.late, quantiles(queue.lateness)),
        (t.duration, quantiles(queue.run_time)),
        (t.total_created, total(queue.created_total)),
        (t.total_done, total(queue.done_total)),
    ];
    if let Some(objective) = &queue.objective {
        facts.insert(0, (t.objective, objective_text(c, objective)));
    }
    facts
}

/// Describes the objective, whether it is met, and its numbers.
fn objective_text(c: &Chrome, objective: &ObjectiveView) -> String {
    let t = c.t;
    let numbers = format!(
        "{} {} · {} {} · {} {}",
        t.in_time,
        number(objective.in_time),
        t.started_late,
        number(objective.late),
        t.wait_late,
        number(objective.waiting)
    );
    let state = match objective.missed {
        true => format!("{}: {}", t.objective_missed, t.lateness_cause(objective.cause)),
        false => t.objective_met.to_owned(),
    };
    format!("{} · {state} · {numbers}", objective.objective)
}

/// A runner and its slots for the queue.
fn served(c: &Chrome, runner: &RunnerSummary, queue: &QueueSummary) -> Option<(String, String)> {
    let served = runner.queues.iter().find(|served| served.queue == queue.queue)?;
    let slots = format!("{} {} {}", number(served.running), c.t.max, number(served.concurrency));
    Some((runner.name.clone(), slots))
}
