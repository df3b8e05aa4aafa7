//! The SQLite backend with full durability, compared to the disk (F) and plain SQLite (R).

mod crash;
mod store;

use std::path::Path;
use std::time::{Duration, Instant};

use dq::backend::Backend;
use dq::{Cancelled, JobRef, NewJob, QueueName};

pub(crate) use self::crash::{VICTIM, victim};
use self::store::SqliteStore;
use crate::history;
use crate::lease;
use crate::measure::{Times, rate, runtime};
use crate::plan::{Plan, Result, progress};
use crate::raw::References;
use crate::table::Figure;
use crate::workload::{BATCH, BULK, QUEUE, Workload, has_key, key, scatter};

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let mut references = References::new(plan);
    let mut figures = vec![
        one_caller(plan, &mut references)?,
        many_callers(plan, &mut references)?,
        bulk(plan, &mut references)?,
        bytes_per_ended_job(plan)?,
    ];
    let few = plan.full_or_quick(100_000, 2_000);
    let many = plan.full_or_quick(1_000_000, 4_000);
    for (jobs, in_order, bound) in
        [(few, true, 0.08), (few, false, 0.04), (many, true, 0.07), (many, false, 0.03)]
    {
        let store = SqliteStore::open(plan, "drain.db")?;
        let load = load(&store, jobs, in_order)?;
        if jobs == many && !in_order {
            figures.extend(full_store(plan, &mut references, &store, &load)?);
        }
        let name = format!(
            "claim and settle by {BATCH}, {} pending, due {}",
            count(jobs),
            if in_order { "in order" } else { "at random" }
        );
        let batches = plan.full_or_quick(300, 5);
        let (drained, rates) = references.around(|| drain(&store, batches))?;
        let jobs_per_second = rate(batches * BATCH, drained.took);
        figures.push(
            Figure::new(&name, jobs_per_second, "jobs/s")
                .compared_to(rates.rows, "R")
                .target(format!("≥ {bound} R"), jobs_per_second >= bound * rates.rows),
        );
        let p99 = drained.claims.millis_at(0.99);
        figures.push(Figure::new(format!("{name}: p99 of a claim"), p99, "ms"));
        if jobs == many && !in_order {
            figures.extend(crash::kill_and_reopen(plan, store)?);
        } else {
            store.discard()?;
        }
    }
    Ok(figures)
}

fn bytes_per_ended_job(plan: &Plan) -> Result<Figure> {
    let path = plan.dir.join("history.db");
    let used = || {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        Ok((size(&path) + size(&path.with_extension("db-wal"))) as f64)
    };
    runtime(2).block_on(async {
        let backend = history::open(&format!("sqlite://{}", path.display())).await?;
        let jobs = plan.full_or_quick(300_000, 5_000);
        let figure = history::bytes_per_ended_job("sqlite", &*backend, jobs, used).await?;
        backend.close().await?;
        Ok(figure)
    })
}

fn count(jobs: usize) -> String {
    if jobs >= 1_000_000 { format!("{}M", jobs / 1_000_000) } else { format!("{}k", jobs / 1_000) }
}

fn one_caller(plan: &Plan, references: &mut References) -> Result<Figure> {
    let store = SqliteStore::open(plan, "one.db")?;
    let duration = plan.full_or_quick(Duration::from_secs(2), Duration::from_millis(50));
    let backend = store.backend();
    let now = store.now();
    let schedule = async move {
        let mut workload = Workload::with_seed(1);
        let start = Instant::now();
        let mut count = 0;
        while start.elapsed() < duration {
            let due = workload.within_a_week(now);
            backend.schedule(vec![workload.job(now, due)]).await?;
            count += 1;
        }
        Result::Ok(rate(count, start.elapsed()))
    };
    let (jobs, rates) = references.around(|| store.block_on(schedule))?;
    progress(format_args!("one caller: {jobs:.0} jobs/s"));
    store.discard()?;
    Ok(Figure::new("schedule, one caller", jobs, "jobs/s")
        .compared_to(rates.syncs, "F")
        .ratio_at_least(0.85))
}

fn many_callers(plan: &Plan, references: &mut References) -> Result<Figure> {
    const CALLERS: usize = 256;
    let store = SqliteStore::open(plan, "many.db")?;
    let each = plan.full_or_quick(400, 5);
    let mut workload = Workload::with_seed(2);
    let callers: Vec<Vec<NewJob>> =
        (0..CALLERS).map(|_| workload.random(store.now(), each)).collect();
    let backend = store.backend();
    let schedule = async move {
        let start = Instant::now();
        let calling: Vec<_> = callers
            .into_iter()
            .map(|jobs| {
                let backend = backend.clone();
                tokio::spawn(async move {
                    for job in jobs {
                        let _ = backend.schedule(vec![job]).await?;
                    }
                    Result::Ok(())
                })
            })
            .collect();
        for caller in calling {
            caller.await??;
        }
        Result::Ok(rate(CALLERS * each, start.elapsed()))
    };
    let (jobs, rates) = references.around(|| store.block_on(schedule))?;
    progress(format_args!("{CALLERS} callers: {jobs:.0} jobs/s"));
    store.discard()?;
    let bound = (90.0 * rates.syncs).min(0.08 * rates.rows);
    Ok(Figure::new(format!("schedule, {CALLERS} callers"), jobs, "jobs/s")
        .compared_to(rates.rows, "R")
        .target("≥ min(90 F, 0.08 R)", jobs >= bound))
}

fn bulk(plan: &Plan, references: &mut References) -> Result<Figure> {
    let store = SqliteStore::open(plan, "bulk.db")?;
    let jobs = plan.full_or_quick(100_000, 2_000);
    let (loaded, rates) = references.around(|| load(&store, jobs, false))?;
    store.discard()?;
    Ok(Figure::new(
        format!("bulks of {BULK}, up to {} pending", count(jobs)),
        loaded.rate,
        "jobs/s",
    )
    .compared_to(rates.rows, "R")
    .ratio_at_least(0.12))
}

struct Load {
    jobs: usize,
    /// Jobs per second over the last tenth, or over all if there are few.
    rate: f64,
    payload_bytes: usize,
}

fn load(store: &SqliteStore, jobs: usize, in_order: bool) -> Result<Load> {
    let (backend, now) = (store.backend(), store.now());
    let loaded = store.block_on(async move {
        let mut workload = Workload::with_seed(3);
        // Generating jobs is not measured.
        let (mut spent, mut payload_bytes) = (Duration::ZERO, 0);
        let measured_from = if jobs > 200_000 { jobs - jobs / 10 } else { 0 };
        for from in (0..jobs).step_by(BULK) {
            let bulk = match in_order {
                true => workload.in_order(now, BULK),
                false => workload.random(now, BULK),
            };
            payload_bytes += bulk.iter().map(|job| job.payload.len()).sum::<usize>();
            let start = Instant::now();
            backend.schedule(bulk).await?;
            if from >= measured_from {
                spent += start.elapsed();
            }
        }
        Result::Ok(Load { jobs, rate: rate(jobs - measured_from, spent), payload_bytes })
    })?;
    progress(format_args!("{} jobs stored, at last {:.0} jobs/s", count(jobs), loaded.rate));
    Ok(loaded)
}

/// File size and cancellation in a store with a million jobs due at random.
fn full_store(
    plan: &Plan,
    references: &mut References,
    store: &SqliteStore,
    load: &Load,
) -> Result<Vec<Figure>> {
    let pending = count(load.jobs);
    let (bytes, payload) = (store.file_bytes()?, load.payload_bytes as f64 / load.jobs as f64);
    let each = bytes as f64 / load.jobs as f64;
    let size = Figure::new(
        format!("file, {pending} pending, each {payload:.0} of payload"),
        each,
        "B/job",
    )
    .target("≤ payload + 200", each <= payload + 200.0);
    let tries = plan.full_or_quick(2_000, 50);
    let (times, rates) = references.around(|| cancel(store, load.jobs, tries))?;
    let p99 = times.millis_at(0.99);
    let bound = 3.0 * 1e3 / rates.syncs + 0.3;
    progress(format_args!("{each:.0} bytes per job; cancel p99 {p99:.2} ms"));
    let p50 = times.millis_at(0.5);
    Ok(vec![
        size,
        Figure::new(format!("cancel by key, {pending} pending: p50"), p50, "ms")
            .compared_to(1e3 / rates.syncs, "syncs"),
        Figure::new(format!("cancel by key, {pending} pending: p99"), p99, "ms")
            .compared_to(1e3 / rates.syncs, "syncs")
            .target(format!("≤ 3 syncs + 0.3 = {bound:.2} ms"), p99 <= bound),
    ])
}

fn cancel(store: &SqliteStore, jobs: usize, tries: usize) -> Result<Times> {
    let backend = store.backend();
    store.block_on(async move {
        let queue = QueueName::new(QUEUE)?;
        let numbers = (0..).map(|n| scatter(n) % jobs as u64).filter(|number| has_key(*number));
        let mut times = Vec::with_capacity(tries);
        for number in numbers.take(tries) {
            let job = [JobRef { queue: queue.clone(), target: dq::Target::Key(key(number)) }];
            let start = Instant::now();
            let result = backend.cancel(&job).await?;
            times.push(start.elapsed());
            // A few numbers occur twice.
            if !matches!(result[..], [Cancelled::Cancelled | Cancelled::NotFound]) {
                return Err(format!("a pending job was not cancelled: {result:?}").into());
            }
        }
        Ok(Times::new(times))
    })
}

struct Drained {
    took: Duration,
    claims: Times,
}

/// Makes all jobs due, then claims and settles batches, each durably.
fn drain(store: &SqliteStore, batches: usize) -> Result<Drained> {
    store.make_all_due();
    let backend = store.backend();
    let drained = store.block_on(async move {
        let mut claims = Vec::with_capacity(batches);
        let start = Instant::now();
        for _ in 0..batches {
            let asked = Instant::now();
            let leases = lease::claim(&*backend, BATCH).await?;
            claims.push(asked.elapsed());
            lease::settle(&*backend, &leases).await?;
        }
        Result::Ok(Drained { took: start.elapsed(), claims: Times::new(claims) })
    })?;
    let jobs = rate(batches * BATCH, drained.took);
    progress(format_args!("claim and settle: {jobs:.0} jobs/s"));
    Ok(drained)
}
