//! Memory of pending jobs.

use crate::measure::block_on;
use crate::plan::{Plan, Result};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{PAYLOAD, Workload, fill, now};

/// The store's growth for each pending job: this process for `memory`, with the allocator's
/// overhead.
pub(crate) fn pending(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    /// Bytes per job without a key and with a payload of [`PAYLOAD`], in `redis`.
    const REDIS_TARGET: f64 = 300.0;
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
        let has_target = store.name == "redis" && payload == PAYLOAD && !keys;
        figures.push(if has_target { figure.at_most(REDIS_TARGET) } else { figure });
    }
    Ok(figures)
}
