//! The SQLite backend with full durability, compared to the disk (F) and plain SQLite (R).

mod reference;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::NewJob;
use dq::backend::Backend;

use self::reference::References;
use crate::measure::{block_on, in_task, rate};
use crate::plan::{Plan, Result};
use crate::store::{Store, open};
use crate::table::{Figure, grouped};
use crate::workload::{BATCH, BULK, Workload, a_week_ago, drain, fill, now, one_by_one};

/// `schedule` calls: by one caller, by many at the same time, and in bulks.
pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let references = References::new(plan);
    Ok(vec![
        one_caller(plan, store, &references)?,
        many_callers(plan, store, &references)?,
        bulk(plan, store, &references)?,
    ])
}

fn close(backend: &dyn Backend) -> Result<()> {
    Ok(block_on(backend.close())?)
}

fn one_caller(plan: &Plan, store: &Store, references: &References) -> Result<Figure> {
    let duration = plan.full_or_quick(Duration::from_secs(2), Duration::from_millis(50));
    let backend = block_on(open(&store.fresh()?))?;
    let calling = Arc::clone(&backend);
    let schedule = async move {
        let mut workload = Workload::with_seed(1);
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < duration {
            let _ = calling.schedule(workload.random(now(), 1)).await?;
            count += 1;
        }
        Result::Ok(rate(count, start.elapsed()))
    };
    let (jobs, rates) = references.around(|| in_task(schedule))?;
    close(&*backend)?;
    Ok(Figure::new("schedule, one caller", jobs, "jobs/s")
        .compared_to(rates.syncs, "F")
        .ratio_at_least(0.85))
}

fn many_callers(plan: &Plan, store: &Store, references: &References) -> Result<Figure> {
    const CALLERS: usize = 256;
    let each = plan.full_or_quick(400, 5);
    let mut workload = Workload::with_seed(2);
    let callers: Vec<Vec<NewJob>> = (0..CALLERS).map(|_| workload.random(now(), each)).collect();
    let backend = block_on(open(&store.fresh()?))?;
    let calling = Arc::clone(&backend);
    let schedule = async move {
        let start = Instant::now();
        let calls: Vec<_> = callers
            .into_iter()
            .map(|jobs| tokio::spawn(one_by_one(Arc::clone(&calling), jobs)))
            .collect();
        for call in calls {
            call.await??;
        }
        Result::Ok(rate(CALLERS * each, start.elapsed()))
    };
    let (jobs, rates) = references.around(|| in_task(schedule))?;
    close(&*backend)?;
    let bound = (90.0 * rates.syncs).min(0.08 * rates.rows);
    Ok(Figure::new(format!("schedule, {CALLERS} callers"), jobs, "jobs/s")
        .compared_to(rates.rows, "R")
        .target("≥ min(90 F, 0.08 R)", jobs >= bound))
}

fn bulk(plan: &Plan, store: &Store, references: &References) -> Result<Figure> {
    let jobs = plan.full_or_quick(100_000, 2_000);
    let backend = block_on(open(&store.fresh()?))?;
    let (spent, rates) = references.around(|| load(&backend, jobs, false))?;
    close(&*backend)?;
    let name = format!("bulks of {BULK}, up to {} pending", grouped(jobs as f64));
    Ok(Figure::new(name, rate(jobs, spent), "jobs/s")
        .compared_to(rates.rows, "R")
        .ratio_at_least(0.12))
}

/// Stores jobs that are due.
fn load(backend: &Arc<dyn Backend>, jobs: usize, in_order: bool) -> Result<Duration> {
    let backend = Arc::clone(backend);
    in_task(async move {
        let (mut workload, from) = (Workload::with_seed(3), a_week_ago());
        let bulk = |bulk| match in_order {
            true => workload.in_order(from, bulk),
            false => workload.random(from, bulk),
        };
        fill(&*backend, jobs, bulk).await
    })
}

/// Claims and settlements, with few and many pending jobs.
pub(crate) fn claims(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let references = References::new(plan);
    let few = plan.full_or_quick(100_000, 2_000);
    let many = plan.full_or_quick(1_000_000, 4_000);
    let jobs = BATCH * plan.full_or_quick(300, 5);
    let mut figures = Vec::new();
    for (pending, in_order, target) in
        [(few, true, 0.08), (few, false, 0.04), (many, true, 0.07), (many, false, 0.03)]
    {
        let backend = block_on(open(&store.fresh()?))?;
        load(&backend, pending, in_order)?;
        let draining = Arc::clone(&backend);
        let drain = async move { drain(&*draining, jobs).await };
        let (took, rates) = references.around(|| in_task(drain))?;
        close(&*backend)?;
        let order = if in_order { "in order" } else { "at random" };
        let pending = grouped(pending as f64);
        let name = format!("claim and settle by {BATCH}, {pending} pending, due {order}");
        let figure = Figure::new(name, rate(jobs, took), "jobs/s").compared_to(rates.rows, "R");
        figures.push(figure.ratio_at_least(target));
    }
    Ok(figures)
}
