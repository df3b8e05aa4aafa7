//! Time and memory for opening a backend with a long log, from connecting until the process can
//! make calls. All queues and exchanges are already declared.

use std::time::{Duration, Instant};

use dq::{JobId, JobRef};

use crate::measure::{Plan, Result, block_on, child_process, medians, millis, progress, resident};
use crate::store::{self, Store};
use crate::table::{Figure, grouped};
use crate::workload::{HOUR, Workload, fill, queue};

pub(crate) const READER: &str = "rabbit-reader";

const TARGET: Duration = Duration::from_secs(2);

const CALLERS: usize = 8;

pub(crate) fn open(plan: &Plan, store: &Store) -> Result<Vec<Figure>> {
    let count = plan.full_or_quick(100_000, 10_000);
    let url = store.fresh()?;
    block_on(async { Result::Ok(store::open(&url).await?.close().await?) })?;
    let [empty, empty_size] = open_in_child(plan, &url)?;
    let ids = block_on(async {
        let backend = store::open(&url).await?;
        let (mut workload, mut ids) = (Workload::keyless(26), Vec::with_capacity(count));
        let bulk = |bulk| {
            let jobs = workload.after(HOUR, bulk);
            ids.extend(jobs.iter().map(|job| job.id));
            jobs
        };
        fill(&*backend, count, bulk).await?;
        backend.close().await?;
        Result::Ok(ids)
    })?;
    let [pending, size] = open_in_child(plan, &url)?;
    let took = block_on(cancel_each(&url, ids))?;
    progress(format_args!("{count} jobs cancelled one by one in {:.1} s", took.as_secs_f64()));
    let [cancelled, _] = open_in_child(plan, &url)?;
    let jobs = grouped(count as f64);
    let row = |name: String, took| Figure::new(name, took, "ms").at_most(millis(TARGET));
    let each = (size - empty_size) / count as f64;
    Ok(vec![
        Figure::new("open: an empty log", empty, "ms"),
        row(format!("open: {jobs} pending jobs"), pending),
        Figure::new("a pending job in the memory of each process", each, "bytes"),
        row(format!("open: {jobs} jobs and as many cancels, each written alone"), cancelled),
    ])
}

/// Cancels jobs one at a time from [`CALLERS`] backends. The first one opens the log and serves the
/// others.
async fn cancel_each(url: &str, ids: Vec<JobId>) -> Result<Duration> {
    let start = Instant::now();
    let mut callers = Vec::new();
    for ids in ids.chunks(ids.len().div_ceil(CALLERS)) {
        let (backend, ids) = (store::open(url).await?, ids.to_vec());
        callers.push(tokio::spawn(async move {
            for id in ids {
                backend.cancel(&[JobRef::new(queue(), id)]).await?;
            }
            Result::Ok(backend)
        }));
    }
    let mut backends = Vec::new();
    for caller in callers {
        backends.push(caller.await??);
    }
    let took = start.elapsed();
    // Close together: closing the first early makes another backend open the log mid-measurement.
    for backend in backends {
        backend.close().await?;
    }
    Ok(took)
}

/// Milliseconds until a process has opened the log, and the bytes by which it has grown.
fn open_in_child(plan: &Plan, url: &str) -> Result<[f64; 2]> {
    medians(plan.full_or_quick(5, 2), |_turn| {
        let output = child_process(READER, &[url]).output()?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> =
            stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let failed = |_| format!("a reader failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(numbers.try_into().map_err(failed)?)
    })
}

pub(crate) fn reader(url: &str) -> Result<()> {
    block_on(async {
        let (start, before) = (Instant::now(), resident("self"));
        let backend = store::open(url).await?;
        let took = start.elapsed();
        println!("{} {}", millis(took), resident("self").saturating_sub(before));
        Ok(backend.close().await?)
    })
}
