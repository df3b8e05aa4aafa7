//! Limits: what they cost while they do not bind, and how soon a freed slot is used by another process.

use dq::Dq;
use dq::backend::Backend;
use dq::config::QueueSettings;

use crate::measure::{Plan, Result, Times, block_on, in_task, median, medians, rate};
use crate::path;
use crate::peers::{Peer, freed_slots};
use crate::probe::{Probe, concurrency_name};
use crate::store::Store;
use crate::table::Figure;

const GROUPS: usize = 1_000;

/// More than the slots of the runner.
const NOT_BINDING: u32 = 100_000;

type Settings = fn(QueueSettings) -> QueueSettings;

/// Each with the number of groups and the least wanted ratio.
const COSTS: [(&str, Settings, usize, f64); 3] = [
    ("a limit that does not bind", |it| it.max_running(NOT_BINDING), 0, 0.95),
    (
        "a rate that does not bind",
        |it| it.rate("10000/1s burst 10000".parse().expect("a rate")),
        0,
        0.95,
    ),
    ("1,000 groups that are not full", |it| it.group_max_running(NOT_BINDING), GROUPS, 0.8),
];

/// The whole path with limits relative to without, in turns.
pub(crate) fn costs(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(20_000, 2_000);
    let mut figures = Vec::new();
    for concurrency in [Some(256), None] {
        let measure = |settings: Settings, groups| -> Result<f64> {
            let dq = block_on(Dq::connect(&store.fresh()?))?;
            if groups > 0 && !dq.backend().capabilities().groups {
                return Ok(f64::NAN);
            }
            let probe = Probe::counting(jobs).settings(settings).concurrency(concurrency);
            let (_, cost) = store.cost(|| in_task(path::whole(dq.clone(), jobs, groups, probe)))?;
            block_on(dq.close())?;
            Ok(rate(jobs, cost.wall))
        };
        let mut without = Vec::new();
        let ratios: [f64; 3] = medians(plan.full_or_quick(7, 1), |turn| {
            // Another one comes first in each turn, because the machine's other work varies.
            let mut rates = [f64::NAN; 4];
            for number in (0..4).map(|number| (number + turn) % 4) {
                rates[number] = match number.checked_sub(1) {
                    None => measure(|it| it, 0)?,
                    Some(number) => measure(COSTS[number].1, COSTS[number].2)?,
                };
            }
            without.push(rates[0]);
            Ok([1, 2, 3].map(|number| rates[number] / rates[0]))
        })?;
        let without = median(without);
        let slots = concurrency_name(concurrency);
        let name = |what| format!("{}: whole path, {what}, {slots}", store.name);
        figures.push(Figure::new(name("no limit"), without, "jobs/s"));
        for ((what, .., wanted), ratio) in COSTS.into_iter().zip(ratios) {
            if !ratio.is_nan() {
                let figure = Figure::new(name(what), without * ratio, "jobs/s");
                figures.push(figure.ratio(ratio, "of no limit").ratio_at_least(wanted));
            }
        }
    }
    Ok(figures)
}

/// From the end of a job in one process to the start of the next in another, with one slot.
pub(crate) fn freed_slot(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(1_000, 50);
    let own = Peer::build("dq", "", &plan.dir)?;
    let slots = freed_slots(&own, &store.fresh()?, jobs)?;
    let across: Vec<_> =
        slots.iter().filter(|(_, by_other)| *by_other).map(|(free, _)| *free).collect();
    let name =
        format!("{}: one slot, {} times freed for another process", store.name, across.len());
    let times = Times::new(across);
    Ok(vec![
        Figure::new(format!("{name}: p50"), times.millis_at(0.5), "ms"),
        Figure::new(format!("{name}: p99"), times.millis_at(0.99), "ms").at_most(5.0),
    ])
}
