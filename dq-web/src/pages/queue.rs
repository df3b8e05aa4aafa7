//! One queue.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use dq_core::{JobState, QueueName};
use dq_ops::{ObjectiveView, Quantiles, QueueSummary, RunnerSummary, WaitingGroups};

use super::chart::Chart;
use super::chrome::{Chrome, PageRequest, render};
use super::dead::{GroupRow, group_rows};
use super::format::{number, rate};
use super::limits::{LimitsForm, waiting_groups};
use super::overview::{HOURS, LIVE_STATES, Tile};
use super::past::PastCharts;
use crate::app::DAY;
use crate::problem::Result;

#[derive(Template)]
#[template(path = "queue.html")]
struct Page {
    c: Chrome,
    queue: QueueSummary,
    tiles: Vec<Tile>,
    facts: Vec<(&'static str, String)>,
    past: PastCharts,
    runners: Vec<(String, String)>,
    groups: Vec<GroupRow>,
    waiting: Option<WaitingGroups>,
    limits_form: Option<LimitsForm>,
}

/// `GET queue?name=`
pub(super) async fn page(request: PageRequest) -> Result<Response> {
    let session = &request.session;
    let name = QueueName::new(request.param("name").unwrap_or_default())?;
    let queue = session.queue(&name).await?;
    let c = request.chrome(name.as_str(), session.now().await?);
    // The page omits parts that the store does not support.
    let forecast = session.forecast(&name, DAY, HOURS).await.ok();
    let mut past = PastCharts::new(&c, &request, Some(&name));
    past.charts.extend(forecast.map(|forecast| Chart::hours(&c, &forecast.counts)));
    let runners = session.runners().await.unwrap_or_default();
    let runners = runners.iter().filter_map(|runner| served(&c, runner, &name)).collect();
    let groups = match queue.dead {
        0 => Vec::new(),
        _ => session.dead(&name).await.map(|dead| dead.groups).unwrap_or_default(),
    };
    let page = Page {
        waiting: waiting_groups(&c, &queue).await,
        limits_form: LimitsForm::of(&c, &queue),
        tiles: c.state_tiles(Some(name.as_str()), std::slice::from_ref(&queue)),
        facts: facts(&c, &queue),
        groups: group_rows(&c, &name, groups.into_iter().take(5)),
        queue,
        past,
        runners,
        c,
    };
    render(StatusCode::OK, &page)
}

fn facts(c: &Chrome, queue: &QueueSummary) -> Vec<(&'static str, String)> {
    let t = c.t;
    let quantiles = |quantiles: Option<Quantiles>| match quantiles {
        Some(Quantiles { p50_ms, p99_ms, .. }) => {
            format!("{} {} · {} {}", t.p50, c.duration(&p50_ms), t.p99, c.duration(&p99_ms))
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

fn objective_text(c: &Chrome, objective: &ObjectiveView) -> String {
    let t = c.t;
    let numbers = [
        (t.in_time, objective.in_time),
        (t.started_late, objective.late),
        (t.wait_late, objective.waiting),
    ];
    let numbers = numbers.map(|(name, count)| format!("{name} {}", number(count))).join(" · ");
    let state = match objective.missed {
        true => format!("{}: {}", t.objective_missed, t.lateness_cause(objective.cause)),
        false => t.objective_met.to_owned(),
    };
    format!("{} · {state} · {numbers}", objective.objective)
}

fn served(c: &Chrome, runner: &RunnerSummary, queue: &QueueName) -> Option<(String, String)> {
    let served = runner.queues.iter().find(|served| served.queue == *queue)?;
    let slots = format!("{} {} {}", number(served.running), c.t.max, number(served.concurrency));
    Some((runner.name.clone(), slots))
}
