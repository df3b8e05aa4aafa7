//! `dq queues`, `pause`, `resume`, `limit` and `purge`.

use std::io;

use dq_core::QueueName;
use dq_ops::{LimitChange, LimitsView, Quantiles, QueueSummary};
use serde_json::json;

use crate::args::LimitArgs;
use crate::failure::Result;
use crate::output::Output;
use crate::source::Source;
use crate::text::{self, Table};

pub(super) fn list(
    queue: Option<&QueueName>,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    let queues = match queue {
        Some(queue) => vec![source.queue(queue)?],
        None => source.queues()?,
    };
    if output.is_json() {
        return queues.iter().try_for_each(|queue| output.json(queue));
    }
    if queues.is_empty() {
        output.note("there is no queue yet: one appears with its first job or runner");
        return Ok(());
    }
    output.text(&table(&queues))
}

pub(super) fn table(queues: &[QueueSummary]) -> String {
    let titles = [
        "QUEUE",
        ">SCHEDULED",
        ">READY",
        ">RUNNING",
        ">DEAD",
        "NEXT DUE",
        ">OLDEST",
        ">RUNNERS",
        ">FREE",
        ">P99 LATE",
        "LIMITS",
        "PAUSED",
    ];
    Table::new(&titles).rows(&queues.iter().map(row).collect::<Vec<_>>())
}

fn row(queue: &QueueSummary) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let oldest = Some(queue.oldest_ready_ms).filter(|_| queue.ready > 0);
    let late = |late: Quantiles| text::duration(late.p99_ms);
    vec![
        text::clean(queue.queue.as_str()),
        queue.scheduled.to_string(),
        queue.ready.to_string(),
        queue.running.to_string(),
        queue.dead.to_string(),
        queue.next_due.map_or(String::new(), |due| due.to_string()),
        oldest.map_or(String::new(), text::duration),
        number(queue.runners),
        number(queue.free_slots),
        queue.lateness.map_or(String::new(), late),
        queue.limits.as_ref().map_or(String::new(), |limits| limits_text(Some(limits))),
        if queue.paused { "paused".to_owned() } else { String::new() },
    ]
}

pub(super) fn pause(
    queue: &QueueName,
    create: bool,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    let changed = source.pause(queue, create)?;
    output.either(&json!({ "queue": queue, "paused": true, "changed": changed }), || {
        let queue = text::clean(queue.as_str());
        if changed { format!("paused {queue}\n") } else { format!("{queue} is paused already\n") }
    })
}

pub(super) fn resume(queue: &QueueName, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let changed = source.resume(queue)?;
    output.either(&json!({ "queue": queue, "paused": false, "changed": changed }), || {
        let queue = text::clean(queue.as_str());
        if changed { format!("resumed {queue}\n") } else { format!("{queue} is not paused\n") }
    })
}

pub(super) fn limit(args: &LimitArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let LimitArgs { queue, max_running, group_max_running, rate, clear } = args;
    let change = LimitChange {
        max_running: max_running.map(|it| it.0),
        group_max_running: group_max_running.map(|it| it.0),
        rate: rate.map(|it| it.0),
    };
    let changed = if *clear { source.unlimit(queue)? } else { source.limit(queue, &change)? };
    let limits = source.queue(queue)?.limits;
    output.either(&json!({ "queue": queue, "limits": limits, "changed": changed }), || {
        let as_before = if changed { "" } else { ", as before" };
        format!("{}: {}{as_before}\n", text::clean(queue.as_str()), limits_text(limits.as_ref()))
    })
}

/// Such as `3 at once, 10/1s (set by an operator)`.
pub(super) fn limits_text(limits: Option<&LimitsView>) -> String {
    let Some(limits) = limits else { return "no limit".to_owned() };
    let at_once = limits.max_running.map(|max| format!("{max} at once"));
    let of_group = limits.group_max_running.map(|max| format!("{max} of a group at once"));
    let parts: Vec<String> =
        at_once.into_iter().chain(of_group).chain(limits.rate.clone()).collect();
    let text = if parts.is_empty() { "no limit".to_owned() } else { parts.join(", ") };
    if limits.overridden { format!("{text} (set by an operator)") } else { text }
}

pub(super) fn purge(
    queue: &QueueName,
    confirm: Option<&str>,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    let summary = source.queue(queue)?;
    let jobs = summary.scheduled + summary.ready + summary.dead;
    let name = text::clean(queue.as_str());
    output.note(&format!("{name}: {} would be deleted", text::count(jobs, "job")));
    let typed = match confirm {
        Some(confirm) => confirm.to_owned(),
        None => {
            output.note("type the name of the queue to delete them:");
            let mut line = String::new();
            // A failed read confirms nothing.
            let _ = io::stdin().read_line(&mut line);
            line.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    let what = format!("purging {}", text::clean(queue.as_str()));
    let changed = output.during(&what, || source.purge(queue, &typed))?;
    output.either(&json!({ "queue": queue, "action": "purge", "changed": changed }), || {
        format!("deleted {} of {name}\n", text::count(changed, "job"))
    })
}
