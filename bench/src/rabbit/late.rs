//! Lateness of handlers.

use std::time::Duration;

use dq::backend::Backend as _;

use super::server::{RabbitServer, cost_of};
use super::store::{self, HOUR, now};
use crate::lateness::{figures, schedule};
use crate::measure::{io_runtime, micros};
use crate::plan::{Plan, Result, progress};
use crate::probe::{Bench, Probe};
use crate::table::Figure;
use crate::workload::{BULK, scatter};

/// Average number of jobs that become due per second.
const PER_SECOND: usize = 2_500;

/// Milliseconds at the median and the 99th percentile.
const TARGET: Option<(f64, f64)> = Some((2.0, 10.0));

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let mut rows = steady(plan, server)?;
    rows.extend(behind_many(plan, server)?);
    Ok(rows)
}

fn steady(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(100_000, 10_000);
    let spread = (jobs / PER_SECOND) as u64 * 1_000;
    let lead = plan.full_or_quick(Duration::from_secs(15), Duration::from_secs(4));
    let vhost = server.vhost();
    let runtime = io_runtime();
    let dq = runtime.block_on(store::dq(&vhost))?;
    // Claims follow one another, and each returns at most one job per free slot. With the default
    // 16 slots, jobs queue up whenever a claim, a round trip to the log, takes over 16 / PER_SECOND
    // = 6.4 ms.
    let probe = Probe::timing(jobs).concurrency(256);
    let running = probe.clone();
    let whole = async move {
        let first = now() + lead;
        let due = move |job| first + Duration::from_millis(scatter(job as u64) % spread);
        // Spawned, as in an application.
        tokio::spawn(async move {
            schedule(&dq, jobs, due).await?;
            if now() > first {
                return Err("the first job was due before the last was stored".into());
            }
            let left = first.as_millis() - now().as_millis();
            progress(format_args!("{jobs} jobs stored, the first due in {left} ms"));
            running.run(&dq).await?;
            dq.close().await?;
            Result::Ok(())
        })
        .await?
    };
    let ((), cost) = cost_of(server, || runtime.block_on(whole))?;
    let name = format!("lateness, {jobs} jobs, {PER_SECOND} due/s");
    let mut rows = figures(&name, &probe, TARGET);
    let (broker, client) = (micros(cost.broker) / jobs as f64, micros(cost.client) / jobs as f64);
    progress(format_args!("{name}: broker {broker:.0} µs, client {client:.0} µs a job"));
    rows.push(Figure::new(format!("{name}: broker CPU"), broker, "µs/job"));
    rows.push(Figure::new(format!("{name}: client CPU"), client, "µs/job"));
    Ok(rows)
}

/// Single jobs due soon, while many pending jobs are due in an hour.
fn behind_many(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let pending = plan.full_or_quick(100_000, 10_000);
    let jobs = plan.full_or_quick(200, 40);
    let vhost = server.vhost();
    let runtime = io_runtime();
    let dq = runtime.block_on(store::dq(&vhost))?;
    runtime.block_on(async {
        let mut workload = store::keyless_with_seed(24);
        for _ in 0..pending / BULK {
            let bulk = store::after(&mut workload, HOUR, BULK);
            dq.backend().schedule(bulk).await?;
        }
        Result::Ok(())
    })?;
    let mut rows = Vec::new();
    // A job due within a second has no message; a longer delay passes the ladder.
    for seconds in [1, 2] {
        let probe = Probe::timing(jobs);
        let running = probe.clone();
        let dq = dq.clone();
        runtime.block_on(async move {
            let producer = {
                let dq = dq.clone();
                tokio::spawn(async move {
                    for _ in 0..jobs {
                        // Not a whole number of milliseconds: jobs arrive at every fraction of the
                        // millisecond to which due times are rounded up.
                        tokio::time::sleep(Duration::from_micros(25_300)).await;
                        let delay = Duration::from_secs(seconds);
                        let _ = dq.schedule::<Bench>(String::new()).after(delay).await?;
                    }
                    Result::Ok(())
                })
            };
            tokio::spawn(async move { running.run(&dq).await.map(drop) }).await??;
            producer.await?
        })?;
        let name = format!("lateness, {seconds} s jobs behind {pending} of an hour");
        rows.extend(figures(&name, &probe, TARGET));
    }
    runtime.block_on(dq.close())?;
    Ok(rows)
}
