//! Server memory per pending job and per ended job.

use super::server::RedisServer;
use super::store::{self, RedisStore};
use crate::history;
use crate::lateness::now;
use crate::measure::io_runtime;
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::Workload;

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(1_000_000, 5_000);
    let mut figures = Vec::new();
    for (payload, jobs, keys) in
        [(100, jobs, false), (100, jobs, true), (1_024, plan.full_or_quick(300_000, 5_000), false)]
    {
        let bytes = bytes_per_job(server, store, payload, jobs, keys)?;
        let keys_note = if keys { ", every second job with a key" } else { "" };
        let name = format!("{}: a pending job, payload {payload} B{keys_note}", store.name);
        progress(format_args!("{name}: {bytes:.0} B"));
        let figure = Figure::new(name, bytes, "B");
        figures.push(match store.memory_target {
            Some(bound) if payload == 100 && !keys => figure.at_most(bound),
            _ => figure,
        });
    }
    figures.push(bytes_per_ended_job(server, store, plan.full_or_quick(300_000, 5_000))?);
    server.clear();
    Ok(figures)
}

fn bytes_per_ended_job(server: &RedisServer, store: &RedisStore, jobs: usize) -> Result<Figure> {
    server.clear();
    io_runtime().block_on(async {
        let backend = history::open(&store.url(server)).await?;
        let used = || Ok(server.memory());
        let figure = history::bytes_per_ended_job(store.name, &*backend, jobs, used).await?;
        backend.close().await?;
        Ok(figure)
    })
}

fn bytes_per_job(
    server: &RedisServer,
    store: &RedisStore,
    payload: usize,
    jobs: usize,
    keys: bool,
) -> Result<f64> {
    server.clear();
    let workload = Workload::with_seed(12).payloads(payload);
    let mut workload = if keys { workload } else { workload.without_keys() };
    io_runtime().block_on(async {
        let backend = store.open(server).await?;
        // The first job loads the scripts, which are not counted.
        store::fill(&*backend, &mut workload, now(), 1).await?;
        let before = server.memory();
        store::fill(&*backend, &mut workload, now(), jobs).await?;
        let grown = server.memory() - before;
        backend.close().await?;
        Ok(grown / jobs as f64)
    })
}
