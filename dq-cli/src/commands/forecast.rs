//! `dq forecast` and `simulate`.

use std::time::Duration;

use dq_core::QueueName;
use dq_ops::{QueueForecastView, SimulatedQueue, SimulationRequest};

use crate::args::SimulateArgs;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::source::Source;
use crate::text::{self, Table};

use super::queues::limits_text;

pub(super) fn forecast(
    queue: Option<&QueueName>,
    window: Duration,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    let mut forecasts = source.forecasts(window)?;
    if let Some(queue) = queue {
        forecasts.queues.retain(|forecast| forecast.queue == *queue);
        // An unknown queue is an error; a known one without jobs in the window is not. A queue that
        // only a schedule names is unknown before its first job, but has a forecast.
        if forecasts.queues.is_empty() {
            source.queue(queue)?;
        }
    }
    if output.is_json() {
        return forecasts.queues.iter().try_for_each(|queue| output.json(queue));
    }
    if forecasts.queues.is_empty() {
        output.note("no job is due in this time");
        return Ok(());
    }
    let has_groups = |queue: &&QueueForecastView| {
        queue.limits.as_ref().is_some_and(|limits| limits.group_max_running.is_some())
    };
    for queue in forecasts.queues.iter().filter(has_groups) {
        let queue = text::clean(queue.queue.as_str());
        output
            .note(&format!("{queue}: the limit of groups is not counted; `dq simulate` counts it"));
    }
    match queue {
        Some(_) => forecasts.queues.iter().try_for_each(|queue| output.text(&by_hour(queue))),
        None => {
            let mut table = Table::new(&[
                "QUEUE",
                ">OVERDUE",
                ">DUE",
                ">PEAK",
                "PEAK AT",
                "DRAINED",
                ">CAPACITY/MIN",
            ]);
            output.text(&table.rows(&forecasts.queues.iter().map(row).collect::<Vec<_>>()))
        }
    }
}

fn row(queue: &QueueForecastView) -> Vec<String> {
    let peak = queue.peak;
    let at = |at: Option<dq_core::Timestamp>| at.map_or(String::new(), |at| at.to_string());
    let drained = match queue.paused {
        true => "paused".to_owned(),
        false => at(peak.map_or(queue.overdue_drained_by, |peak| peak.drained_by)),
    };
    vec![
        text::clean(queue.queue.as_str()),
        queue.overdue.to_string(),
        queue.due().to_string(),
        peak.map_or(0, |peak| peak.due).to_string(),
        at(peak.map(|peak| peak.from)),
        drained,
        queue.capacity_per_minute.map_or("?".to_owned(), |jobs| format!("{jobs:.1}")),
    ]
}

fn by_hour(queue: &QueueForecastView) -> String {
    let rows = queue.hours.iter().map(|hour| {
        let backlog = hour.backlog.map_or("?".to_owned(), |backlog| backlog.to_string());
        vec![hour.from.to_string(), hour.due.to_string(), backlog]
    });
    Table::new(&["FROM", ">DUE", ">LEFT OVER"]).rows(&rows.collect::<Vec<_>>())
}

pub(super) fn simulate(
    args: &SimulateArgs,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    let report = source.simulate(&request(args)?).map_err(name_flags)?;
    if output.is_json() {
        return output.json(&report);
    }
    output.text(&format!("{} to {}\n", report.start, report.end))?;
    if report.due_earlier > 0 {
        let jobs = text::count(report.due_earlier, "job");
        output.note(&format!("{jobs} due before the start are taken as done"));
    }
    if report.queues.is_empty() {
        output.note("no job is due in this time");
        return Ok(());
    }
    let titles = [
        "QUEUE",
        ">SLOTS",
        ">JOBS",
        ">SKIPPED",
        ">P50 LATE",
        ">P99 LATE",
        ">MAX LATE",
        ">BACKLOG",
        "DRAINED",
        "LIMITS",
    ];
    output.text(&Table::new(&titles).rows(&report.queues.iter().map(simulated).collect::<Vec<_>>()))
}

/// Replaces a remedy that names request fields (`dq-core/src/simulate/call.rs`) with one that names
/// flags. These errors have no code, so the text identifies them; `tests/forecast.rs` checks it.
fn name_flags(failure: Failure) -> Failure {
    match failure {
        Failure::Error { kind, message, remedy: Some(remedy) }
            if remedy.contains("default_concurrency and default_run_time") =>
        {
            Failure::new(
                &kind,
                message,
                "give --concurrency 4 and --run-time 1s, or for one queue MAIL=4 and MAIL=1s",
            )
        }
        failure => failure,
    }
}

fn simulated(queue: &SimulatedQueue) -> Vec<String> {
    let late = |millis: Option<u64>| millis.map_or(String::new(), text::duration);
    let drained = match queue.drained {
        Some(drained) => drained.to_string(),
        None if queue.concurrency == 0 => "paused".to_owned(),
        None => String::new(),
    };
    vec![
        text::clean(queue.queue.as_str()),
        queue.concurrency.to_string(),
        queue.jobs.to_string(),
        queue.skipped.to_string(),
        late(queue.late_p50_ms),
        late(queue.late_p99_ms),
        late(queue.late_max_ms),
        queue.backlog.to_string(),
        drained,
        queue.limits.as_ref().map_or(String::new(), |limits| limits_text(Some(limits))),
    ]
}

fn request(args: &SimulateArgs) -> Result<SimulationRequest> {
    let mut request = SimulationRequest::default();
    request.window = Some(args.window.clone());
    request.start.clone_from(&args.start);
    request.load = Some(args.load);
    for text in &args.concurrency {
        let (queue, number) = of_queue(text);
        let number: u64 = number.parse().map_err(|_| {
            Failure::usage(
                format!("--concurrency {text} has no number"),
                "write it like 8, or like MAIL=8",
            )
        })?;
        match queue {
            Some(queue) => drop(request.concurrency.insert(queue.to_owned(), number)),
            None => request.default_concurrency = Some(number),
        }
    }
    for text in &args.run_time {
        match of_queue(text) {
            (Some(queue), time) => {
                drop(request.run_time.insert(queue.to_owned(), time.to_owned()));
            }
            (None, time) => request.default_run_time = Some(time.to_owned()),
        }
    }
    Ok(request)
}

/// Splits `QUEUE=VALUE`, or returns a value alone. A queue name may contain `=`.
fn of_queue(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once('=') {
        Some((queue, value)) => (Some(queue), value),
        None => (None, text),
    }
}
