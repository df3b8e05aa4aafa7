//! Store gauges in the Prometheus text format, followed by this process's runner metrics, which
//! count job events. All replicas report the same gauges, so queries take their maximum, not their
//! sum.

use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use dq_core::{JobState, Rate};
use dq_ops::{Overview, QueueSummary, Session};

use crate::problem::Result;

/// Name, help text, and value for a queue.
type Gauge = (&'static str, &'static str, fn(&QueueSummary) -> Option<f64>);

const GAUGES: [Gauge; 9] = [
    (
        "dq_oldest_ready_seconds",
        "How long the oldest ready job has waited; 0 if none waits.",
        |queue| Some(queue.oldest_ready_ms as f64 / 1_000.0),
    ),
    ("dq_queue_paused", "1 if the queue is paused.", |queue| Some(f64::from(queue.paused))),
    ("dq_queue_runners", "Number of runners that serve the queue.", |queue| {
        queue.runners.map(|runners| runners as f64)
    }),
    ("dq_queue_free_slots", "How many more jobs the runners could start now.", |queue| {
        queue.free_slots.map(|slots| slots as f64)
    }),
    (
        "dq_queue_lateness_missed",
        "1 if the lateness objective of the queue is missed, 0 if it is met.",
        |queue| queue.objective.as_ref().map(|objective| f64::from(objective.missed)),
    ),
    ("dq_queue_max_running", "How many jobs of the queue may run at once.", |queue| {
        queue.limits.as_ref()?.max_running.map(f64::from)
    }),
    (
        "dq_queue_group_max_running",
        "How many jobs of each group of the queue may run at once.",
        |queue| queue.limits.as_ref()?.group_max_running.map(f64::from),
    ),
    ("dq_queue_rate", "How many jobs of the queue may start per second.", |queue| {
        let rate: Rate = queue.limits.as_ref()?.rate.as_ref()?.parse().ok()?;
        let (jobs, per, _) = rate.parts();
        Some(f64::from(jobs) / per.as_secs_f64())
    }),
    (
        "dq_queue_held_back",
        "Number of ready jobs while the queue's max_running, rate or throttle lets none start.",
        |queue| queue.limits.as_ref().map(|_| queue.held_back as f64),
    ),
];

pub(crate) type ProcessMetrics = Arc<dyn Fn() -> String + Send + Sync>;

pub(crate) async fn metrics(
    Extension(session): Extension<Session>,
    Extension(of_process): Extension<ProcessMetrics>,
) -> Result<Response> {
    let text = render(&session.overview().await?) + &of_process();
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

fn render(overview: &Overview) -> String {
    let mut text = String::from("# HELP dq_queue_jobs Number of jobs by state.\n");
    text += "# TYPE dq_queue_jobs gauge\n";
    for queue in &overview.queues {
        let name = escaped(queue.queue.as_str());
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
            let count = queue.count(state).unwrap_or(0);
            let _ = writeln!(text, "dq_queue_jobs{{queue=\"{name}\",state=\"{state}\"}} {count}");
        }
    }
    for (metric, help, value_of) in GAUGES {
        let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} gauge");
        for queue in &overview.queues {
            if let Some(value) = value_of(queue) {
                let name = escaped(queue.queue.as_str());
                let _ = writeln!(text, "{metric}{{queue=\"{name}\"}} {value}");
            }
        }
    }
    text
}

/// Escapes a label value. Queue names have no control characters, so no line feeds.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"")
}
