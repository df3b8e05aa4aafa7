//! A job's whole path: schedule, claim by a runner, an empty handler, settle.

use std::time::Instant;

use super::server::{RedisServer, cpu_of};
use super::store::RedisStore;
use crate::measure::{io_runtime, median, micros, rate};
use crate::plan::{Plan, Result, progress};
use crate::probe::{Probe, concurrency_name, schedule_and_run};
use crate::table::Figure;

/// Server CPU microseconds per job.
const CPU_TARGET: f64 = 14.0;

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    // With few slots, claims and settlements are small and cost more per job. The target applies to
    // 256 slots, where claims can be full; docs/benchmarks.md shows both.
    let mut figures = through(plan, server, store, Some(256))?;
    figures[0] = figures[0].clone().at_most(CPU_TARGET);
    figures.extend(through(plan, server, store, None)?);
    Ok(figures)
}

fn through(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
    concurrency: Option<usize>,
) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(100_000, 2_000);
    let (mut cpus, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..plan.full_or_quick(5, 1) {
        server.clear();
        let runtime = io_runtime();
        let dq = runtime.block_on(store.dq(server))?;
        let mut probe = Probe::counting(jobs);
        if let Some(concurrency) = concurrency {
            probe = probe.concurrency(concurrency);
        }
        let whole = async move {
            let start = Instant::now();
            schedule_and_run(&dq, &probe, jobs).await?;
            let took = start.elapsed();
            dq.close().await?;
            Result::Ok(took)
        };
        let (took, cpu) =
            cpu_of(server, || runtime.block_on(async { tokio::spawn(whole).await? }))?;
        cpus.push(micros(cpu) / jobs as f64);
        rates.push(rate(jobs, took));
    }
    let (cpu, rate) = (median(cpus), median(rates));
    let with = concurrency_name(concurrency);
    let name = format!("{}: schedule, claim, run, settle, {with}", store.name);
    progress(format_args!("{name}: {cpu:.2} µs of Redis, {rate:.0} jobs/s"));
    Ok(vec![
        Figure::new(format!("{name}: Redis CPU"), cpu, "µs/job"),
        Figure::new(name, rate, "jobs/s"),
    ])
}
