//! The overview's table of queues: problems first, unless you sort it.

use std::cmp::Reverse;

use dq_ops::QueueSummary;

use super::chrome::{Chrome, PageRequest};
use super::format::number;

/// Lateness in milliseconds that marks a queue or job as late, whatever its objective.
pub(super) const LATE_MS: u64 = 1_000;

/// How long a job may wait for a runner before its queue has a problem. In a healthy queue, all
/// slots are busy now and then.
const WAITS_MS: u64 = 10_000;

/// Maximum number of rows, unless you ask for all.
const MAX_ROWS: usize = 50;

pub(super) struct QueueTable {
    /// The count of all queues.
    pub(super) number: String,
    /// Queues with a badge that tells of a problem.
    pub(super) troubled: usize,
    pub(super) find: String,
    /// Page parameters that the filter keeps.
    pub(super) kept: Vec<(&'static str, String)>,
    pub(super) clear: Option<String>,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<QueueSummary>,
    /// Address and count of all queues, if the page shows only some.
    pub(super) all: Option<(String, String)>,
    pub(super) is_empty: bool,
}

pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) href: String,
    /// The `aria-sort` value, if the table is sorted by this column.
    pub(super) sorted: Option<&'static str>,
    pub(super) is_number: bool,
}

impl QueueTable {
    pub(super) fn new(c: &Chrome, request: &PageRequest, all: Vec<QueueSummary>) -> Self {
        let t = c.t;
        let find = request.param("find").unwrap_or_default();
        let wanted = find.trim().to_lowercase();
        let count = all.len();
        let troubled = all.iter().filter(|queue| has_badge(c, queue)).count();
        let mut rows = all;
        rows.retain(|queue| queue.queue.as_str().to_lowercase().contains(&wanted));
        let by = request.param("sort").unwrap_or_default();
        sort(&mut rows, by);
        let is_cut = rows.len() > MAX_ROWS && request.param("all").is_none();
        let all = is_cut.then(|| (request.with(c, "all", Some("1")), number(rows.len() as u64)));
        if is_cut {
            rows.truncate(MAX_ROWS);
        }
        let column = |(id, name): (&str, _)| Column {
            name,
            // A second click leads back to the problems.
            href: request.with(c, "sort", Some(id).filter(|id| *id != by)),
            sorted: (id == by).then_some(match id {
                "name" | "due" => "ascending",
                _ => "descending",
            }),
            is_number: id != "name",
        };
        let columns = [
            ("name", t.queue),
            ("scheduled", t.scheduled),
            ("ready", t.ready),
            ("running", t.running),
            ("dead", t.dead),
            ("lateness", t.lateness),
            ("rate", t.per_minute),
            ("due", t.next_due),
        ];
        let kept = ["sort", "past", "lang"];
        let kept =
            kept.into_iter().filter_map(|name| Some((name, request.param(name)?.to_owned())));
        Self {
            number: number(count as u64),
            troubled,
            find: find.to_owned(),
            kept: kept.collect(),
            clear: (!find.is_empty()).then(|| request.with(c, "find", None)),
            columns: columns.map(column).into(),
            rows,
            all,
            is_empty: count == 0,
        }
    }
}

/// A queue's problem, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Jobs are due, and no runner serves them.
    NoRunner,
    /// Jobs start late, or wait for long.
    Late,
    Dead,
    /// Jobs wait in a paused queue, or in one without a runner.
    Stopped,
    None,
}

impl Trouble {
    fn of(queue: &QueueSummary) -> Self {
        let missed = queue.objective.as_ref().is_some_and(|objective| objective.missed);
        if has_no_runner(queue) {
            Self::NoRunner
        } else if missed || is_late(queue) || (waits_long(queue) && !queue.paused) {
            Self::Late
        } else if queue.dead > 0 {
            Self::Dead
        } else if queue.scheduled + queue.ready > 0 && (queue.paused || queue.runners == Some(0)) {
            Self::Stopped
        } else {
            Self::None
        }
    }
}

/// Whether jobs are due that no runner serves.
pub(super) fn has_no_runner(queue: &QueueSummary) -> bool {
    queue.runners == Some(0) && queue.ready > 0
}

/// Whether the row shows a badge that tells of a problem; "paused" does if jobs wait.
fn has_badge(c: &Chrome, queue: &QueueSummary) -> bool {
    (queue.paused && queue.scheduled + queue.ready > 0)
        || c.throttled(queue)
        || has_no_runner(queue)
        || c.missed(queue).is_some()
        || waits_long(queue)
}

pub(super) fn is_late(queue: &QueueSummary) -> bool {
    queue.lateness.is_some_and(|lateness| lateness.p99_ms >= LATE_MS)
}

pub(super) fn waits_long(queue: &QueueSummary) -> bool {
    queue.oldest_ready_ms >= WAITS_MS
}

/// Sorts queues that arrive in name order.
fn sort(queues: &mut [QueueSummary], by: &str) {
    match by {
        "name" => {}
        "scheduled" => queues.sort_by_key(|queue| Reverse(queue.scheduled)),
        "ready" => queues.sort_by_key(|queue| Reverse(queue.ready)),
        "running" => queues.sort_by_key(|queue| Reverse(queue.running)),
        "dead" => queues.sort_by_key(|queue| Reverse(queue.dead)),
        "lateness" => queues.sort_by_key(|queue| Reverse(queue.lateness.map(|late| late.p99_ms))),
        "rate" => queues.sort_by_key(|queue| Reverse(queue.lateness.map(|runs| runs.count))),
        "due" => queues.sort_by_key(|queue| (queue.next_due.is_none(), queue.next_due)),
        _ => queues.sort_by_key(|queue| {
            let trouble = Trouble::of(queue);
            let waits = if trouble == Trouble::None { 0 } else { queue.oldest_ready_ms / WAITS_MS };
            (trouble, Reverse(waits), Reverse(queue.dead))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, scheduled: u64, ready: u64) -> QueueSummary {
        let json = serde_json::json!({
            "queue": name, "scheduled": scheduled, "ready": ready, "running": 0, "dead": 0,
            "paused": false, "next_due": null, "oldest_ready_ms": 0, "runners": 1,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_is_wrong_comes_first_and_the_worst_before_the_rest() {
        let mut dead = queue("a-dead", 0, 0);
        dead.dead = 2;
        let fine = queue("b-fine", 5, 1);
        let mut late = queue("c-late", 0, 3);
        late.oldest_ready_ms = WAITS_MS;
        let mut alone = queue("d-alone", 0, 1);
        alone.runners = Some(0);
        let mut paused = queue("e-paused", 1, 0);
        paused.paused = true;
        let mut later = queue("f-later", 0, 3);
        later.oldest_ready_ms = 3 * WAITS_MS;
        let queues = [dead, fine, late, alone, paused, later];
        let order = |by| {
            let mut queues = queues.to_vec();
            sort(&mut queues, by);
            queues.iter().map(|queue| queue.queue.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(order(""), ["d-alone", "f-later", "c-late", "a-dead", "e-paused", "b-fine"]);
        assert_eq!(order("name")[0], "a-dead");
        assert_eq!(order("scheduled")[..2], ["b-fine", "e-paused"]);
    }
}
