//! The PostgreSQL backend on a private, durable server, compared to what the server itself can do.
//!
//! Both sides take short turns on the same server; the figures are medians, and a ratio is the
//! median of the turns' ratios.

mod bare;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::backend::Backend;

pub(crate) use self::bare::connect as client;
use self::bare::{Functions, Table};
use crate::measure::{Plan, Result, block_on, in_task, medians, rate};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{BATCH, BULK, HOUR, Workload, a_week_ago, drain, fill, now, one_by_one};

/// Bulks, beside `INSERT … SELECT unnest`.
pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = 10 * BULK;
    let url = store.fresh()?;
    let backend = block_on(open(&url))?;
    let table = Arc::new(block_on(Table::create(&url))?);
    let mut workload = Workload::keyless(31);
    let mut turn = || {
        let mut bulks = workload.random(now() + HOUR, 2 * jobs);
        let rows = bulks.split_off(jobs);
        let (filling, table) = (Arc::clone(&backend), Arc::clone(&table));
        let own = in_task(async move {
            fill(&*filling, jobs, |bulk| bulks.split_off(bulks.len() - bulk)).await
        })?;
        let bare = in_task(async move { table.bulks(&rows).await })?;
        Ok([rate(jobs, own), bare.as_secs_f64() / own.as_secs_f64()])
    };
    // The first turn creates the queue and does not count.
    let _: [f64; 2] = turn()?;
    let [own, ratio] = medians(plan.full_or_quick(21, 2), |_turn| turn())?;
    block_on(backend.close())?;
    let figure = Figure::new(format!("schedule by {BULK}"), own, "jobs/s");
    Ok(vec![figure.ratio(ratio, "bare INSERT").ratio_at_least(0.8)])
}

/// One caller that waits for each commit.
pub(crate) fn single(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    const TURN: usize = 200;
    let url = store.fresh()?;
    let backends = [block_on(open(&url))?, block_on(open(&format!("{url}?prepare=true")))?];
    let table = Arc::new(block_on(Table::create(&url))?);
    let mut workload = Workload::keyless(32);
    let mut turn = || {
        let rows = workload.random(now(), TURN);
        let table = Arc::clone(&table);
        let bare = in_task(async move { table.one_by_one(&rows).await })?.as_secs_f64();
        let mut own = |backend| in_task(one_by_one(backend, workload.random(now() + HOUR, TURN)));
        let [plain, prepared] = [own(Arc::clone(&backends[0]))?, own(Arc::clone(&backends[1]))?];
        let ratio = |own: Duration| bare / own.as_secs_f64();
        Ok([rate(TURN, plain), ratio(plain), rate(TURN, prepared), ratio(prepared)])
    };
    let _: [f64; 4] = turn()?;
    let [plain, plain_ratio, prepared, prepared_ratio] =
        medians(plan.full_or_quick(41, 2), |_turn| turn())?;
    for backend in backends {
        block_on(backend.close())?;
    }
    let figure = |name, own, ratio| {
        Figure::new(name, own, "jobs/s").ratio(ratio, "bare INSERT").ratio_at_least(0.85)
    };
    Ok(vec![
        figure("schedule, one caller", plain, plain_ratio),
        figure("schedule, one caller, prepared", prepared, prepared_ratio),
    ])
}

/// One claimer beside the bare functions, then several claimers.
pub(crate) fn claims(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    const TURN: usize = 20 * BATCH;
    let turns = plan.full_or_quick(21, 2);
    let (url, bare_url) = (store.fresh()?, store.another());
    let (backend, other) = (block_on(open(&url))?, block_on(open(&bare_url))?);
    let mut workload = Workload::keyless(33);
    for backend in [&backend, &other] {
        let due = |bulk| workload.random(a_week_ago(), bulk);
        block_on(fill(&**backend, (turns + 1) * TURN, due))?;
    }
    let mut functions = block_on(Functions::connect(&url))?;
    let mut turn = || {
        let draining = Arc::clone(&backend);
        let own = in_task(async move { drain(&*draining, TURN).await })?;
        let bare = block_on(functions.drain(TURN))?;
        Ok([rate(TURN, own), bare.as_secs_f64() / own.as_secs_f64()])
    };
    // The first turn plans the statements and does not count.
    let _: [f64; 2] = turn()?;
    let [own, ratio] = medians(turns, |_turn| turn())?;
    block_on(async {
        backend.close().await?;
        other.close().await
    })?;
    let name = format!("claim and settle by {BATCH}");
    let figure = Figure::new(format!("{name}, one claimer"), own, "jobs/s");
    let mut figures = vec![figure.ratio(ratio, "bare functions").ratio_at_least(0.9)];
    for claimers in [2, 4, 8] {
        let own = concurrent(plan, store, claimers)?;
        let figure = Figure::new(format!("{name}, {claimers} claimers"), own, "jobs/s");
        figures.push(if claimers == 4 { figure.at_least(30_000.0) } else { figure });
    }
    Ok(figures)
}

fn concurrent(plan: &Plan, store: &Store, claimers: usize) -> Result<f64> {
    let jobs = plan.full_or_quick(10_000, 500);
    let backend = block_on(open(&store.fresh()?))?;
    let mut workload = Workload::keyless(34);
    let [rate] = medians(plan.full_or_quick(5, 1), |_turn| {
        block_on(fill(&*backend, claimers * jobs, |bulk| workload.random(a_week_ago(), bulk)))?;
        let claimers = (0..claimers).map(|_| {
            let backend = Arc::clone(&backend);
            async move { drain(&*backend, jobs).await }
        });
        let claimers: Vec<_> = claimers.collect();
        let count = claimers.len();
        Ok([rate(count * jobs, side_by_side(claimers)?)])
    })?;
    block_on(backend.close())?;
    Ok(rate)
}

/// Producers that commit job by job, beside a schema that never notifies.
pub(crate) fn producers(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    const PRODUCERS: usize = 64;
    const EACH: usize = 20;
    let (url, quiet_url) = (store.fresh()?, store.another());
    let connections = format!("connections={PRODUCERS}");
    let backend = block_on(open(&format!("{url}?{connections}")))?;
    let quiet = block_on(open(&format!("{quiet_url}&{connections}")))?;
    block_on(async {
        let silence = "CREATE OR REPLACE FUNCTION another.hint(bucket integer) RETURNS void \
            LANGUAGE sql AS ''";
        Result::Ok(client(&url).await?.batch_execute(silence).await?)
    })?;
    let mut workload = Workload::keyless(35);
    let mut figures = Vec::new();
    for (name, delay) in [("an hour", HOUR), ("a second", Duration::from_secs(1))] {
        let mut run = |backend: &Arc<dyn Backend>| {
            let producer = |_| one_by_one(Arc::clone(backend), workload.after(delay, EACH));
            side_by_side((0..PRODUCERS).map(producer).collect())
        };
        let mut turn = || {
            let (own, quiet) = (run(&backend)?, run(&quiet)?);
            Ok([rate(PRODUCERS * EACH, own), quiet.as_secs_f64() / own.as_secs_f64()])
        };
        // The first turn connects and does not count.
        let _: [f64; 2] = turn()?;
        let [own, ratio] = medians(plan.full_or_quick(31, 2), |_turn| turn())?;
        let name = format!("schedule, {PRODUCERS} callers, due in {name}");
        let figure = Figure::new(name, own, "jobs/s").ratio(ratio, "without wake-ups");
        figures.push(if delay == HOUR { figure.ratio_at_least(0.95) } else { figure });
    }
    block_on(async {
        backend.close().await?;
        quiet.close().await
    })?;
    Ok(figures)
}

/// Bytes in the write-ahead log.
pub(crate) fn log(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(100_000, 2_000);
    let backend = block_on(open(&store.fresh()?))?;
    let mut workload = Workload::keyless(36);
    let wal = || store.wal().ok_or("the server has no log");
    let start = wal()?;
    block_on(fill(&*backend, jobs, |bulk| workload.random(a_week_ago(), bulk)))?;
    let stored = wal()?;
    block_on(drain(&*backend, jobs))?;
    let settled = wal()?;
    block_on(backend.close())?;
    let figure = |name, bytes: f64| Figure::new(name, bytes / jobs as f64, "bytes of log a job");
    Ok(vec![
        figure(format!("schedule by {BULK}"), stored - start),
        figure(format!("claim and settle by {BATCH}"), settled - stored),
    ])
}

/// Runs the calls at the same time, each in a task, and returns the time until all have ended.
fn side_by_side(
    calls: Vec<impl Future<Output = Result<Duration>> + Send + 'static>,
) -> Result<Duration> {
    block_on(async {
        let start = Instant::now();
        let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
        for task in tasks {
            task.await??;
        }
        Ok(start.elapsed())
    })
}
