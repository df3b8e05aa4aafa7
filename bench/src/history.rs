//! The cost of remembering ended jobs: bytes and settlement time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dq::backend::{Backend, backend_from_url};
use dq::config::Environment;
use dq::{Entropy, HistoryLimit, HistoryLimits, SystemClock, Timestamp};
use dq_servers::{RabbitMq, Redis, install};

use crate::lease::{claim, drain, settle};
use crate::measure::{io_runtime, median, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::{BATCH, PAYLOAD, WEEK, Workload};

const DAY: Duration = Duration::from_secs(86_400);

/// Opens a store that remembers every job in a measurement.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    open_with(url, HistoryLimit::new(u32::MAX, DAY)).await
}

async fn open_with(url: &str, limit: HistoryLimit) -> Result<Arc<dyn Backend>> {
    let mut environment = Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
    environment.history = HistoryLimits::all(limit);
    Ok(backend_from_url(url)?.connect(&environment).await?)
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    install::redis()?;
    install::rabbitmq()?;
    let (redis, rabbit) = (Redis::start(), RabbitMq::start());
    let file = |name: &str| format!("sqlite://{}", plan.dir.join(name).display());
    let redis = |prefix: &str| format!("{}?prefix={prefix}", redis.url());
    let stores = [
        ("memory", ["memory:".to_owned(), "memory:".to_owned()]),
        ("sqlite", [file("without.db"), file("with.db")]),
        ("redis", [redis("without"), redis("with")]),
        ("rabbitmq", [rabbit.vhost("without"), rabbit.vhost("with")]),
    ];
    let mut figures = Vec::new();
    for (name, urls) in &stores {
        for size in [16, BATCH] {
            figures.push(io_runtime().block_on(settlements(plan, name, urls, size))?);
        }
    }
    Ok(figures)
}

/// Rounds alternate between the two stores; the ratio is the median over neighbouring rounds.
async fn settlements(
    plan: &Plan,
    name: &str,
    [without, with]: &[String; 2],
    size: usize,
) -> Result<Figure> {
    let without = open_with(without, HistoryLimit::new(0, DAY)).await?;
    let with = open_with(with, HistoryLimit::default()).await?;
    let batches = plan.full_or_quick(200, 2);
    let mut workload = Workload::with_seed(17).payloads(PAYLOAD);
    let mut rates = [Vec::new(), Vec::new()];
    // The first round fills the history and loads scripts.
    for round in 0..=plan.full_or_quick(11, 1) {
        for (backend, rates) in [&without, &with].into_iter().zip(&mut rates) {
            let now = Timestamp::from(SystemTime::now());
            let week_ago = Timestamp::from_millis(now.as_millis() - WEEK);
            let _ = backend.schedule(workload.random(week_ago, batches * size)).await?;
            let mut took = Duration::ZERO;
            for _ in 0..batches {
                let leases = claim(&**backend, size).await?;
                let began = Instant::now();
                settle(&**backend, &leases).await?;
                took += began.elapsed();
            }
            if round > 0 {
                rates.push(rate(batches * size, took));
            }
        }
    }
    without.close().await?;
    with.close().await?;
    let ratios = rates[1].iter().zip(&rates[0]).map(|(with, without)| with / without).collect();
    let [without, with] = rates.map(median);
    let ratio = median(ratios);
    progress(format_args!("{name}, settled by {size}: {without:.0} and {with:.0}/s: {ratio:.2}"));
    Ok(Figure::new(format!("{name}: settled by {size} with a history"), with, "jobs/s")
        .compared_to(with / ratio, "without")
        .ratio_at_least(0.9))
}

/// The store's growth per ended job. `used` returns its size in bytes; `jobs` is a multiple of
/// [`BATCH`].
pub(crate) async fn bytes_per_ended_job(
    name: &str,
    backend: &dyn Backend,
    jobs: usize,
    used: impl Fn() -> Result<f64>,
) -> Result<Figure> {
    let mut workload = Workload::with_seed(16).payloads(PAYLOAD);
    let now = Timestamp::from(SystemTime::now());
    // Random due times lie within a week from then, so all jobs are due.
    let week_ago = Timestamp::from_millis(now.as_millis() - WEEK);
    let mut before = 0.0;
    // The first batch loads scripts and allocates memory for pending jobs.
    for done in (0..jobs + BATCH).step_by(BATCH) {
        if done == BATCH {
            before = used()?;
        }
        let _ = backend.schedule(workload.random(week_ago, BATCH)).await?;
        drain(backend, BATCH).await?;
    }
    let each = (used()? - before) / jobs as f64;
    progress(format_args!("{name}: {jobs} ended jobs take {each:.0} bytes each"));
    Ok(Figure::new(format!("{name}: an ended job in the history"), each, "bytes"))
}
