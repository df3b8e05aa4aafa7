//! The cost of remembering ended jobs: bytes and settlement time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::backend::{Backend, backend_from_url};
use dq::{HistoryLimit, HistoryLimits};

use crate::measure::{Plan, Result, block_on, medians, rate};
use crate::store::{Store, environment};
use crate::table::Figure;
use crate::workload::{BATCH, PAYLOAD, Workload, a_week_ago, claim, drain, fill, settle};

const DAY: Duration = Duration::from_secs(86_400);

async fn open(url: &str, limit: HistoryLimit) -> Result<Arc<dyn Backend>> {
    let mut environment = environment();
    environment.history = HistoryLimits::all(limit);
    Ok(backend_from_url(url)?.connect(&environment).await?)
}

/// Compares settlements with and without a history, in neighbouring rounds on one server.
pub(crate) fn settlements(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let batches = plan.full_or_quick(200, 2);
    let mut figures = Vec::new();
    for size in [16, BATCH] {
        let (url, without_url) = (store.fresh()?, store.another());
        let with = block_on(open(&url, HistoryLimit::default()))?;
        let without = block_on(open(&without_url, HistoryLimit::new(0, DAY)))?;
        let mut workload = Workload::with_seed(17).payloads(PAYLOAD);
        let mut round = |backend: &dyn Backend| {
            block_on(async {
                let jobs = workload.random(a_week_ago(), batches * size);
                let _ = backend.schedule(jobs).await?;
                let mut took = Duration::ZERO;
                for _ in 0..batches {
                    let leases = claim(backend, size).await?;
                    let began = Instant::now();
                    settle(backend, &leases).await?;
                    took += began.elapsed();
                }
                Result::Ok(rate(batches * size, took))
            })
        };
        // The first round fills the history and loads scripts.
        round(&*without)?;
        round(&*with)?;
        let [with_rate, ratio] = medians(plan.full_or_quick(11, 1), |_round| {
            let without = round(&*without)?;
            let with = round(&*with)?;
            Ok([with, with / without])
        })?;
        block_on(async {
            without.close().await?;
            with.close().await
        })?;
        let name = format!("{}: settled by {size} with a history", store.name);
        let figure = Figure::new(name, with_rate, "jobs/s");
        figures.push(figure.ratio(ratio, "without").ratio_at_least(0.9));
    }
    Ok(figures)
}

pub(crate) fn bytes(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(300_000, 5_000);
    let url = store.fresh()?;
    let grown = block_on(async {
        let backend = open(&url, HistoryLimit::new(u32::MAX, DAY)).await?;
        let mut workload = Workload::with_seed(16).payloads(PAYLOAD);
        let mut before = 0.0;
        // The first batch loads scripts and allocates memory for pending jobs.
        for done in (0..jobs + BATCH).step_by(BATCH) {
            if done == BATCH {
                before = store.bytes()?;
            }
            fill(&*backend, BATCH, |bulk| workload.random(a_week_ago(), bulk)).await?;
            drain(&*backend, BATCH).await?;
        }
        let grown = store.bytes()? - before;
        backend.close().await?;
        Result::Ok(grown)
    })?;
    let name = format!("{}: an ended job in the history", store.name);
    Ok(vec![Figure::new(name, grown / jobs as f64, "bytes")])
}
