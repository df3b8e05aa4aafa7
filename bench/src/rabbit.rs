//! The RabbitMQ backend on a private broker, compared to what the broker itself can do.
//!
//! One RabbitMQ node on the same machine, over loopback, with the settings recommended for delayed
//! jobs and two schedulers; single-member quorum queues; 100-byte payloads. Compared figures take
//! turns on the same broker. Figures are medians over several turns; a ratio is the median of the
//! per-turn ratios. CPU covers the whole broker process.

mod open;
mod raw;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::backend::{Backend, ClaimParams, Want};
use dq::{JobRef, Timestamp};

pub(crate) use self::open::{READER, open, reader};
use self::raw::Raw;
use crate::measure::{Plan, Result, Times, block_on, in_task, medians, micros, rate};
use crate::store;
use crate::store::Store;
use crate::table::Figure;
use crate::workload::{BATCH, BULK, HOUR, Workload, drain, fill, now, one_by_one, queue};

/// Measures consecutive bulks beside raw messages, up to 1,000 of them unconfirmed.
///
/// Jobs with one delay share messages, sixteen in each. Jobs with random delays within a day need
/// about a hundred messages for each bulk of 1,000; raw messages cannot be batched so.
pub(crate) fn schedule(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    const DAY: i64 = 86_400_000;
    let jobs = plan.full_or_quick(40_000, 10_000);
    let mut figures = Vec::new();
    for (name, is_random) in [("one delay", false), ("random within a day", true)] {
        let url = store.fresh()?;
        let backend = block_on(store::open(&url))?;
        let raw = block_on(Raw::connect(&url))?;
        let mut seed = 20;
        let mut turn = || {
            seed += 1;
            let mut workload = Workload::keyless(seed);
            let filling = Arc::clone(&backend);
            let own = in_task(async move {
                let bulk = |bulk| match is_random {
                    true => workload.random_within(now(), DAY, bulk),
                    false => workload.after(HOUR, bulk),
                };
                fill(&*filling, jobs, bulk).await
            })?;
            let bare = block_on(async {
                let took = raw.publish(jobs, BULK).await?;
                raw.purge().await?;
                Result::Ok(took)
            })?;
            Ok([rate(jobs, own), bare.as_secs_f64() / own.as_secs_f64()])
        };
        // The first turn warms up the broker and does not count.
        let _: [f64; 2] = turn()?;
        let [own, share] = medians(plan.full_or_quick(9, 3), |_turn| turn())?;
        block_on(async {
            backend.close().await?;
            raw.close().await
        })?;
        let figure = Figure::new(format!("schedule by {BULK}, {name}"), own, "jobs/s");
        figures.push(figure.ratio(share, "raw").ratio_at_least(0.8));
    }
    Ok(figures)
}

/// One caller that waits for each job, compared to one that waits for each raw message's confirm.
/// The backend writes a job due in an hour to the log and publishes it; it writes a job due in half
/// a second only to the log.
pub(crate) fn single(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    /// Jobs per turn. Turns are short so that other load on the machine affects both sides.
    const TURN: usize = 100;
    /// The goal is parity; 5 % allow for noise.
    const TARGET: f64 = 0.95;
    let url = store.fresh()?;
    let backend = block_on(store::open(&url))?;
    let raw = Arc::new(block_on(Raw::connect(&url))?);
    let mut workload = Workload::keyless(22);
    let mut run = |delay| {
        let raw = Arc::clone(&raw);
        let bare = in_task(async move { raw.publish(TURN, 1).await })?;
        let jobs = workload.after(delay, TURN);
        let own = in_task(one_by_one(Arc::clone(&backend), jobs))?;
        Result::Ok([rate(TURN, own), bare.as_secs_f64() / own.as_secs_f64()])
    };
    let mut turn = || {
        let [hour, hour_share] = run(HOUR)?;
        let [short, short_share] = run(Duration::from_millis(500))?;
        Ok([hour, hour_share, short, short_share])
    };
    // The first turn warms up the broker and does not count.
    let _: [f64; 4] = turn()?;
    let [hour, hour_share, short, short_share] =
        medians(plan.full_or_quick(21, 3), |_turn| turn())?;
    block_on(async {
        backend.close().await?;
        raw.close().await
    })?;
    let figure = |name: &str, rate: f64, share: f64| {
        Figure::new(format!("schedule, one caller, due in {name}"), rate, "jobs/s")
            .ratio(share, "raw")
            .ratio_at_least(TARGET)
    };
    Ok(vec![figure("an hour", hour, hour_share), figure("half a second", short, short_share)])
}

/// Claims and settlements of jobs due at once, which have no messages: only the path through the
/// log.
pub(crate) fn claims(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let jobs = plan.full_or_quick(50_000, 5_000);
    let backend = block_on(store::open(&store.fresh()?))?;
    let mut workload = Workload::keyless(27);
    let [rate, broker] = medians(plan.full_or_quick(5, 2), |_turn| {
        block_on(fill(&*backend, jobs, |bulk| workload.after(Duration::ZERO, bulk)))?;
        let draining = Arc::clone(&backend);
        let drain = async move { drain(&*draining, jobs).await };
        let (took, cost) = store.cost(|| in_task(drain))?;
        Ok([rate(jobs, took), micros(cost.server_cpu) / jobs as f64])
    })?;
    block_on(backend.close())?;
    let name = format!("claim and settle by {BATCH}");
    Ok(vec![
        Figure::new(&*name, rate, "jobs/s"),
        Figure::new(format!("{name}: broker CPU"), broker, "µs/job"),
    ])
}

/// Time until a cancellation takes effect in another process. A second backend, with its own
/// connections and log replica, stands for that process.
pub(crate) fn cancel(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let count = plan.full_or_quick(2_000, 200);
    let url = store.fresh()?;
    let times = block_on(async {
        let (here, there) = (store::open(&url).await?, store::open(&url).await?);
        let mut workload = Workload::keyless(25);
        let mut times = Vec::new();
        for _ in 0..count {
            let jobs = workload.after(HOUR, 1);
            let job = JobRef::new(queue(), jobs[0].id);
            let _ = here.schedule(jobs).await?;
            // The first poll also opens the log there: a process without claims has no replica.
            while next_due(&*there).await?.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let start = Instant::now();
            let canceller = here.clone();
            let cancelling = tokio::spawn(async move { canceller.cancel(&[job]).await });
            while next_due(&*there).await?.is_some() {
                tokio::task::yield_now().await;
            }
            times.push(start.elapsed());
            cancelling.await??;
        }
        here.close().await?;
        there.close().await?;
        Result::Ok(Times::new(times))
    })?;
    let name = "cancel, effective in another process";
    Ok(vec![
        Figure::new(format!("{name}: p50"), times.millis_at(0.5), "ms"),
        Figure::new(format!("{name}: p99"), times.millis_at(0.99), "ms").at_most(10.0),
    ])
}

/// The next due time in the backend's log replica. Claims no jobs, which sends nothing.
async fn next_due(backend: &dyn Backend) -> Result<Option<Timestamp>> {
    let wants = [Want::new(queue(), 0, Duration::from_secs(300))];
    Ok(backend.claim(ClaimParams::new(&wants, 0, "dq-bench")).await?.next_due)
}
