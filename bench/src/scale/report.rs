//! The report: a table and a plot.

use serde::Serialize;

use super::measure::{Point, Quantiles};
use crate::conditions::Conditions;
use crate::plot::{Line, Scale, plot};
use crate::table::{grouped, markdown};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) store: &'static str,
    pub(super) queues: usize,
    pub(super) conditions: Conditions,
    pub(super) points: Vec<Point>,
}

type Row = (&'static str, fn(&Point) -> String);

const ROWS: [Row; 13] = [
    ("stored in batches of 1,000, jobs/s", |it| grouped(it.bulk_rate)),
    ("bytes in the store for each", |it| format!("{:.0}", it.store_bytes)),
    ("bytes of the process for each", |it| format!("{:.0}", it.process_bytes)),
    ("memory of the server, MiB", |it| format!("{:.0}", it.server_resident as f64 / 1_048_576.0)),
    ("schedule of one, p50 / p99 / max, ms", |it| quantiles(it.schedule)),
    ("cancel of one, p50 / p99 / max, ms", |it| quantiles(it.cancel)),
    ("claim and settlement of one, p50 / p99 / max, ms", |it| quantiles(it.claim_and_settle)),
    ("`stats`, p50 / p99 / max, ms", |it| quantiles(it.stats)),
    ("lateness, 100 due a second, p50 / p99 / max, ms", |it| quantiles(it.lateness)),
    ("CPU of an idle runner, ms/s", |it| format!("{:.2}", it.idle.process_cpu)),
    ("CPU of the server for it, ms/s", |it| optional(it.idle.server_cpu)),
    ("its commands a second, with those inside scripts", |it| optional(it.idle.commands)),
    // 1,000 runners × ms per second ÷ 1,000 ms = cores.
    ("cores of the server for 1,000 idle runners, calculated", |it| optional(it.idle.server_cpu)),
];

fn quantiles(Quantiles { p50, p99, max }: Quantiles) -> String {
    format!("{p50:.2} / {p99:.2} / {max:.2}")
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2}"))
}

impl Report {
    pub(super) fn markdown(&self) -> String {
        let count = |number: usize| grouped(number as f64);
        let of_queues = match self.queues {
            1 => String::new(),
            queues => format!(", {} queues", count(queues)),
        };
        let title = format!("`{}`{of_queues}, pending jobs", self.store);
        let pending = self.points.iter().map(|point| count(point.pending));
        let head: Vec<String> = std::iter::once(title).chain(pending).collect();
        let row = |(name, cell): (&str, fn(&Point) -> String)| {
            std::iter::once(name.to_owned()).chain(self.points.iter().map(cell)).collect()
        };
        format!("```\n{}```\n\n{}", self.conditions, markdown(&head, ROWS.map(row)))
    }

    pub(super) fn plot(&self) -> String {
        let line = |name, of: fn(&Point) -> Quantiles| Line {
            name,
            points: self.points.iter().map(|it| (it.pending as f64, of(it).p99)).collect(),
        };
        let title = format!("{}: 99th percentiles in ms, by pending jobs", self.store);
        plot(
            &title,
            Scale::Logarithmic,
            &[
                line("schedule", |it| it.schedule),
                line("cancel", |it| it.cancel),
                line("claim and settle", |it| it.claim_and_settle),
                line("lateness", |it| it.lateness),
            ],
        )
    }
}
