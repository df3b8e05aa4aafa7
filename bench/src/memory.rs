//! The memory backend through client and runner, with an empty handler.

use std::hint::black_box;

use dq::Dq;

use crate::history;
use crate::measure::{Stopwatch, median, micros, rate, resident, runtime};
use crate::plan::{Plan, Result, progress};
use crate::probe::{Bench, Probe, concurrency_name};
use crate::table::Figure;
use crate::workload::{PAYLOAD, WEEK, has_key, key, scatter};

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let mut figures = vec![
        bytes_per_job(plan.full_or_quick(1_000_000, 20_000))?,
        runtime(0).block_on(bytes_per_ended_job(plan.full_or_quick(300_000, 5_000)))?,
    ];
    let jobs = plan.full_or_quick(300_000, 5_000);
    for (workers, concurrency, has_target) in
        [(0, None, true), (0, Some(256), true), (2, None, false), (2, Some(256), false)]
    {
        figures.extend(through_the_runner(
            jobs,
            plan.full_or_quick(3, 1),
            workers,
            concurrency,
            has_target,
        )?);
    }
    Ok(figures)
}

fn payload() -> String {
    // JSON adds two quotes.
    "x".repeat(PAYLOAD - 2)
}

/// Process growth per pending job, including allocator overhead.
fn bytes_per_job(jobs: usize) -> Result<Figure> {
    let before = resident("self");
    let runtime = runtime(0);
    let grown = runtime.block_on(async {
        let dq = Dq::connect("memory:").await?;
        for number in 0..jobs as u64 {
            let at = scatter(number) % WEEK.unsigned_abs();
            let mut job = dq
                .schedule::<Bench>(payload())
                .after(std::time::Duration::from_millis(60_000 + at));
            if has_key(number) {
                job = job.key(key(number).as_str());
            }
            let _ = job.await?;
        }
        let grown = resident("self") - before;
        black_box(&dq);
        Ok::<_, dq::Error>(grown)
    })?;
    let each = grown as f64 / jobs as f64;
    progress(format_args!("{jobs} pending jobs take {each:.0} bytes each"));
    Ok(Figure::new("a pending job, with its payload of 100 bytes", each, "bytes"))
}

async fn bytes_per_ended_job(jobs: usize) -> Result<Figure> {
    let backend = history::open("memory:").await?;
    let used = || Ok(resident("self") as f64);
    history::bytes_per_ended_job("memory", &*backend, jobs, used).await
}

/// Schedules jobs due now, then runs them all. With 0 `workers`, everything runs on one thread.
fn through_the_runner(
    jobs: usize,
    rounds: usize,
    workers: usize,
    concurrency: Option<usize>,
    has_target: bool,
) -> Result<Vec<Figure>> {
    let runtime = runtime(workers);
    let (mut schedule_costs, mut run_costs, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let setting = format!(
        "{}, {}",
        if workers == 0 { "one thread".to_owned() } else { format!("{workers} workers") },
        concurrency_name(concurrency)
    );
    for _ in 0..rounds {
        let (dq, wall, cpu) = runtime.block_on(async {
            let dq = Dq::connect("memory:").await?;
            let watch = Stopwatch::start();
            for number in 0..jobs as u64 {
                let mut job = dq.schedule::<Bench>(payload());
                if has_key(number) {
                    job = job.key(key(number).as_str());
                }
                let _ = job.await?;
            }
            Ok::<_, dq::Error>((dq, watch.wall(), watch.cpu()))
        })?;
        let mut probe = Probe::counting(jobs);
        if let Some(concurrency) = concurrency {
            probe = probe.concurrency(concurrency);
        }
        // Spawned, as in an application.
        let (run_wall, run_cpu) = runtime.block_on(async {
            tokio::spawn(async move {
                let watch = probe.run(&dq).await?;
                Result::Ok((watch.wall(), watch.cpu()))
            })
            .await?
        })?;
        schedule_costs.push(micros(cpu) / jobs as f64);
        run_costs.push(micros(run_cpu) / jobs as f64);
        rates.push(rate(jobs, wall + run_wall));
    }
    let (scheduled, ran) = (median(schedule_costs), median(run_costs));
    progress(format_args!("{setting}: schedule {scheduled:.2} µs, run {ran:.2} µs of CPU"));
    let cost = Figure::new(format!("{setting}: claim, run, settle"), ran, "µs CPU");
    Ok(vec![
        Figure::new(format!("{setting}: schedule"), scheduled, "µs CPU"),
        if has_target { cost.at_most(3.0) } else { cost },
        Figure::new(format!("{setting}: schedule, claim, run, settle"), median(rates), "jobs/s"),
    ])
}
