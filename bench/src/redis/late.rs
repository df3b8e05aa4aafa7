//! Handler lateness when jobs become due one after another, with many pending jobs.

use std::time::Duration;

use super::server::RedisServer;
use super::store::{self, RedisStore};
use crate::lateness::{figures, now, schedule};
use crate::measure::io_runtime;
use crate::plan::{Plan, Result, progress};
use crate::probe::Probe;
use crate::table::Figure;

const PER_SECOND: usize = 2_000;

/// Milliseconds at the median and the 99th percentile.
const TARGET: Option<(f64, f64)> = Some((2.0, 8.0));

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &'static RedisStore,
) -> Result<Vec<Figure>> {
    server.clear();
    let pending = plan.full_or_quick(1_000_000, 5_000);
    let jobs = plan.full_or_quick(10, 1) * PER_SECOND;
    let lead = plan.full_or_quick(Duration::from_secs(4), Duration::from_secs(1));
    let runtime = io_runtime();
    let dq = runtime.block_on(store.dq(server))?;
    let probe = Probe::timing(jobs);
    let running = probe.clone();
    runtime.block_on(async move {
        let later = now() + Duration::from_secs(3_600);
        store::fill(&**dq.backend(), &mut store::keyless_with_seed(14), later, pending).await?;
        progress(format_args!("{pending} jobs stored"));
        let first = now() + lead;
        let due = |job| first + Duration::from_millis((job * 1_000 / PER_SECOND) as u64);
        schedule(&dq, jobs, due).await?;
        if now() > first {
            return Err("the first job was due before the last was stored".into());
        }
        // Spawned, as in an application.
        tokio::spawn(async move {
            running.run(&dq).await?;
            dq.close().await?;
            Result::Ok(())
        })
        .await?
    })?;
    let name = format!("{}, {pending} pending, {PER_SECOND} due/s", store.name);
    Ok(figures(&name, &probe, TARGET))
}
