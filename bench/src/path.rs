//! A job's whole path: schedule in bulks, claim by a runner, an empty handler, settle.

use dq::Dq;

use crate::measure::{Plan, Result, Stopwatch, block_on, in_task, medians, micros, rate};
use crate::probe::{Bench, Probe, concurrency_name};
use crate::store::Store;
use crate::table::Figure;
use crate::workload::{BULK, PAYLOAD};

/// Microseconds of Redis CPU per job, with 256 slots, where claims can be full. With few slots,
/// claims and settlements are small and cost more per job.
const REDIS_CPU_TARGET: f64 = 14.0;

pub(crate) fn measure(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(50_000, 2_000);
    let mut figures = Vec::new();
    for concurrency in [Some(256), None] {
        let [rate, server, client] = medians(plan.full_or_quick(5, 1), |_turn| {
            let dq = block_on(Dq::connect(&store.fresh()?))?;
            let probe = Probe::counting(jobs).concurrency(concurrency);
            let (_, cost) = store.cost(|| in_task(whole(dq.clone(), jobs, 0, probe)))?;
            block_on(dq.close())?;
            let [server, client] =
                [cost.server_cpu, cost.client_cpu].map(|cpu| micros(cpu) / jobs as f64);
            Ok([rate(jobs, cost.wall), server, client])
        })?;
        let name = format!(
            "{}: schedule, claim, run, settle, {}",
            store.name,
            concurrency_name(concurrency)
        );
        let server = Figure::new(format!("{name}: server CPU"), server, "µs/job");
        let has_target = store.redis().is_ok() && concurrency.is_some();
        figures.extend([
            Figure::new(&*name, rate, "jobs/s"),
            if has_target { server.at_most(REDIS_CPU_TARGET) } else { server },
            Figure::new(format!("{name}: client CPU"), client, "µs/job"),
        ]);
    }
    Ok(figures)
}

/// Schedules jobs, in so many groups, and runs them.
pub(crate) async fn whole(dq: Dq, jobs: usize, groups: usize, probe: Probe) -> Result<Stopwatch> {
    for first in (0..jobs).step_by(BULK) {
        let job = |number: usize| {
            // JSON adds two quotes.
            let job = dq.schedule::<Bench>("x".repeat(PAYLOAD - 2));
            match number.checked_rem(groups) {
                Some(group) => job.group(format!("group {group}")),
                None => job,
            }
        };
        let _ = dq.schedule_many((first..first + BULK).map(job)).await?;
    }
    probe.run(&dq).await
}
