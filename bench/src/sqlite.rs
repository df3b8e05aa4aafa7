//! The SQLite backend with full durability, compared to the disk (F) and plain SQLite (R).

mod crash;
mod reference;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::backend::Backend;
use dq::sqlite::rusqlite::Connection;
use dq::{Cancelled, JobRef, NewJob};

pub(crate) use self::crash::{VICTIM, victim};
use self::reference::References;
use crate::measure::{Plan, Result, Times, block_on, in_task, rate};
use crate::store::{Store, open};
use crate::table::{Figure, grouped};
use crate::workload::{
    BATCH, BULK, Workload, a_week_ago, drain, fill, has_key, key, now, one_by_one, queue, scatter,
};

const MEAN_PAYLOAD: f64 = 562.0;

pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let mut references = References::new(plan);
    Ok(vec![
        one_caller(plan, store, &mut references)?,
        many_callers(plan, store, &mut references)?,
        bulk(plan, store, &mut references)?,
    ])
}

fn close(backend: &dyn Backend) -> Result<()> {
    Ok(block_on(backend.close())?)
}

fn one_caller(plan: &Plan, store: &Store, references: &mut References) -> Result<Figure> {
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

fn many_callers(plan: &Plan, store: &Store, references: &mut References) -> Result<Figure> {
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

fn bulk(plan: &Plan, store: &Store, references: &mut References) -> Result<Figure> {
    let jobs = plan.full_or_quick(100_000, 2_000);
    let backend = block_on(open(&store.fresh()?))?;
    let (spent, rates) = references.around(|| load(&backend, jobs, false))?;
    close(&*backend)?;
    let name = format!("bulks of {BULK}, up to {} pending", grouped(jobs as f64));
    Ok(Figure::new(name, rate(jobs, spent), "jobs/s")
        .compared_to(rates.rows, "R")
        .ratio_at_least(0.12))
}

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

/// Claims and settlements; then file size, cancels and a crash with a million jobs due at random.
pub(crate) fn claims(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let mut references = References::new(plan);
    let few = plan.full_or_quick(100_000, 2_000);
    let many = plan.full_or_quick(1_000_000, 4_000);
    let jobs = BATCH * plan.full_or_quick(300, 5);
    let mut figures = Vec::new();
    for (pending, in_order, bound) in
        [(few, true, 0.08), (few, false, 0.04), (many, true, 0.07), (many, false, 0.03)]
    {
        let backend = block_on(open(&store.fresh()?))?;
        load(&backend, pending, in_order)?;
        let is_last = pending == many && !in_order;
        if is_last {
            figures.extend(full_store(plan, store, &mut references, &backend, pending)?);
        }
        let draining = Arc::clone(&backend);
        let drain = async move { drain(&*draining, jobs).await };
        let (took, rates) = references.around(|| in_task(drain))?;
        let name = format!(
            "claim and settle by {BATCH}, {} pending, due {}",
            grouped(pending as f64),
            if in_order { "in order" } else { "at random" }
        );
        let figure = Figure::new(name, rate(jobs, took), "jobs/s").compared_to(rates.rows, "R");
        figures.push(figure.ratio_at_least(bound));
        if is_last {
            figures.extend(crash::kill_and_reopen(plan, store, &*backend)?);
        } else {
            close(&*backend)?;
        }
    }
    Ok(figures)
}

fn full_store(
    plan: &Plan,
    store: &Store,
    references: &mut References,
    backend: &Arc<dyn Backend>,
    jobs: usize,
) -> Result<Vec<Figure>> {
    let pending = grouped(jobs as f64);
    // The file's size once the log is checkpointed.
    let conn = Connection::open(store.address())?;
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
    let bytes = u64::from(pragma("page_count")?) * u64::from(pragma("page_size")?);
    let each = bytes as f64 / jobs as f64;
    let size = format!("file, {pending} pending, each {MEAN_PAYLOAD:.0} of payload");
    let tries = plan.full_or_quick(2_000, 50);
    let cancelling = Arc::clone(backend);
    let cancel = async move { cancel(&*cancelling, jobs, tries).await };
    let (times, rates) = references.around(|| in_task(cancel))?;
    let (p50, p99) = (times.millis_at(0.5), times.millis_at(0.99));
    let sync = 1e3 / rates.syncs;
    let bound = 3.0 * sync + 0.3;
    Ok(vec![
        Figure::new(size, each, "B/job").target("≤ payload + 200", each <= MEAN_PAYLOAD + 200.0),
        Figure::new(format!("cancel by key, {pending} pending: p50"), p50, "ms")
            .compared_to(sync, "syncs"),
        Figure::new(format!("cancel by key, {pending} pending: p99"), p99, "ms")
            .compared_to(sync, "syncs")
            .target(format!("≤ 3 syncs + 0.3 = {bound:.2} ms"), p99 <= bound),
    ])
}

async fn cancel(backend: &dyn Backend, jobs: usize, tries: usize) -> Result<Times> {
    let numbers = (0..).map(|n| scatter(n) % jobs as u64).filter(|number| has_key(*number));
    let mut times = Vec::with_capacity(tries);
    for number in numbers.take(tries) {
        let job = [JobRef { queue: queue(), target: dq::Target::Key(key(number)) }];
        let start = Instant::now();
        let result = backend.cancel(&job).await?;
        times.push(start.elapsed());
        // A few numbers occur twice.
        if !matches!(result[..], [Cancelled::Cancelled | Cancelled::NotFound]) {
            return Err(format!("a pending job was not cancelled: {result:?}").into());
        }
    }
    Ok(Times::new(times))
}
