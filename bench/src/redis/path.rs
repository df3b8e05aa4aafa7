//! The whole way of a job: scheduled, claimed by a runner, handled by nothing, settled.

use std::time::Instant;

use super::server::{Server, cpu_of};
use super::store::Store;
use super::{BULK, PAYLOAD, runtime};
use crate::measure::{median, micros, rate};
use crate::probe::{Bench, Probe};
use crate::table::Figure;
use crate::{Plan, Result, progress};

/// What the server may spend on a job, in microseconds.
const CPU: f64 = 14.0;

pub(super) fn measure(plan: &Plan, server: &Server, store: &Store) -> Result<Vec<Figure>> {
    // What is claimed and settled at once is at most as much as runs at once.
    let mut figures = through(plan, server, store, Some(256))?;
    figures[0] = figures[0].clone().at_most(CPU);
    figures.extend(through(plan, server, store, None)?);
    Ok(figures)
}

fn through(
    plan: &Plan,
    server: &Server,
    store: &Store,
    concurrency: Option<usize>,
) -> Result<Vec<Figure>> {
    let jobs = plan.size(100_000, 2_000);
    let (mut cpus, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..plan.size(5, 1) {
        server.clear();
        let runtime = runtime();
        let dq = runtime.block_on(store.dq(server))?;
        let mut probe = Probe::counting(jobs);
        if let Some(concurrency) = concurrency {
            probe = probe.concurrency(concurrency);
        }
        let whole = async move {
            let began = Instant::now();
            for _ in 0..jobs / BULK {
                // Two quotes are added by the encoding.
                let job = |_| dq.schedule::<Bench>("x".repeat(PAYLOAD - 2));
                let _ = dq.schedule_many((0..BULK).map(job)).await?;
            }
            probe.run(&dq).await?;
            let took = began.elapsed();
            dq.close().await?;
            Result::Ok(took)
        };
        let (took, cpu) =
            cpu_of(server, || runtime.block_on(async { tokio::spawn(whole).await? }))?;
        cpus.push(micros(cpu) / jobs as f64);
        rates.push(rate(jobs, took));
    }
    let (cpu, rate) = (median(cpus), median(rates));
    let with = concurrency
        .map_or_else(|| "default concurrency".to_owned(), |jobs| format!("concurrency {jobs}"));
    let name = format!("{}: schedule, claim, run, settle, {with}", store.name);
    progress(format_args!("{name}: {cpu:.2} µs of Redis, {rate:.0} jobs/s"));
    Ok(vec![
        Figure::new(format!("{name}: Redis CPU"), cpu, "µs/job"),
        Figure::new(name, rate, "jobs/s"),
    ])
}
