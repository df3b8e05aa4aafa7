//! A job's whole path: schedule in bulks, claim by a runner, an empty handler, settle.

use dq::Dq;

use crate::measure::{Plan, Result, block_on, in_task, medians, micros, rate};
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
            let closing = dq.clone();
            let whole = async move {
                // JSON adds two quotes.
                let job = |_| dq.schedule::<Bench>("x".repeat(PAYLOAD - 2));
                for _ in 0..jobs / BULK {
                    let _ = dq.schedule_many((0..BULK).map(job)).await?;
                }
                Probe::counting(jobs).concurrency(concurrency).run(&dq).await
            };
            let (_, cost) = store.cost(|| in_task(whole))?;
            block_on(closing.close())?;
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
