//! Memory of pending jobs, and CPU time of client and runner over the memory backend.

use dq::Dq;

use crate::measure::{Plan, Result, Stopwatch, block_on, medians, micros, rate, runtime};
use crate::probe::{Bench, Probe, concurrency_name};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{PAYLOAD, Workload, fill, has_key, key, now};

/// The store's growth for each pending job: this process for `memory`, with the allocator's
/// overhead.
pub(crate) fn pending(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    /// Bytes per job without a key and with a payload of [`PAYLOAD`], in `redis` and `postgres`.
    const TARGET: f64 = 300.0;
    let many = plan.full_or_quick(1_000_000, 5_000);
    let few = plan.full_or_quick(300_000, 5_000);
    let mut cases = vec![(PAYLOAD, many, true)];
    // A process reuses the memory of an earlier case.
    if store.name != "memory" {
        cases.extend([(PAYLOAD, many, false), (1_024, few, false)]);
    }
    let mut figures = Vec::new();
    for (payload, jobs, keys) in cases {
        let url = store.fresh()?;
        let mut workload = match keys {
            true => Workload::with_seed(12).payloads(payload),
            false => Workload::keyless(12).payloads(payload),
        };
        let grown = block_on(async {
            let backend = open(&url).await?;
            // The first job loads scripts, which are not counted.
            fill(&*backend, 1, |bulk| workload.random(now(), bulk)).await?;
            let before = store.bytes()?;
            fill(&*backend, jobs, |bulk| workload.random(now(), bulk)).await?;
            let grown = store.bytes()? - before;
            backend.close().await?;
            Result::Ok(grown)
        })?;
        let keys_note = if keys { ", every second job with a key" } else { "" };
        let name = format!("{}: a pending job, payload {payload} bytes{keys_note}", store.name);
        let figure = Figure::new(name, grown / jobs as f64, "bytes");
        let has_target = ["redis", "postgres"].contains(&store.name) && payload == PAYLOAD && !keys;
        figures.push(if has_target { figure.at_most(TARGET) } else { figure });
    }
    Ok(figures)
}

pub(crate) fn runner(plan: &Plan, _: &Store) -> Result<Vec<Figure>> {
    /// CPU microseconds for an empty job on one thread.
    const TARGET: f64 = 3.0;
    let jobs = plan.full_or_quick(300_000, 5_000);
    let mut figures = Vec::new();
    for (workers, concurrency) in [(0, None), (0, Some(256)), (2, None), (2, Some(256))] {
        let runtime = runtime(workers);
        let [scheduled, ran, rate] = medians(plan.full_or_quick(3, 1), |_round| {
            let (dq, wall, cpu) = runtime.block_on(async {
                let dq = Dq::connect("memory:").await?;
                let watch = Stopwatch::start();
                for number in 0..jobs as u64 {
                    // JSON adds two quotes.
                    let mut job = dq.schedule::<Bench>("x".repeat(PAYLOAD - 2));
                    if has_key(number) {
                        job = job.key(key(number).as_str());
                    }
                    let _ = job.await?;
                }
                Result::Ok((dq, watch.wall(), watch.cpu()))
            })?;
            let probe = Probe::counting(jobs).concurrency(concurrency);
            let (run_wall, run_cpu) = runtime.block_on(async {
                tokio::spawn(async move {
                    let watch = probe.run(&dq).await?;
                    Result::Ok((watch.wall(), watch.cpu()))
                })
                .await?
            })?;
            let each = |cpu| micros(cpu) / jobs as f64;
            Ok([each(cpu), each(run_cpu), rate(jobs, wall + run_wall)])
        })?;
        let threads = if workers == 0 { "one thread" } else { "2 workers" };
        let setting = format!("{threads}, {}", concurrency_name(concurrency));
        let cost = Figure::new(format!("{setting}: claim, run, settle"), ran, "µs CPU");
        figures.extend([
            Figure::new(format!("{setting}: schedule"), scheduled, "µs CPU"),
            if workers == 0 { cost.at_most(TARGET) } else { cost },
            Figure::new(format!("{setting}: schedule, claim, run, settle"), rate, "jobs/s"),
        ]);
    }
    Ok(figures)
}
