//! Time and memory for opening a backend with a long log.

use std::time::{Duration, Instant};

use dq::{JobRef, QueueName};

use super::server::RabbitServer;
use super::store::{self, HOUR};
use crate::measure::{io_runtime, median, millis, process_cpu, resident};
use crate::plan::{Plan, Result, child_process, progress};
use crate::table::Figure;
use crate::workload::{BULK, QUEUE};

pub(crate) const READER: &str = "rabbit-reader";

const TARGET: Duration = Duration::from_secs(2);

const CALLERS: usize = 8;

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let count = plan.full_or_quick(100_000, 10_000);
    let runtime = io_runtime();
    let mut figures = Vec::new();
    let empty = {
        let vhost = server.vhost();
        runtime.block_on(async { Result::Ok(store::open(vhost.url()).await?.close().await?) })?;
        open_in_child(plan, vhost.url())?
    };
    figures.push(Figure::new("open: an empty log", empty.millis, "ms"));

    let vhost = server.vhost();
    let ids = runtime.block_on(async {
        let backend = store::open(vhost.url()).await?;
        let mut workload = store::keyless_with_seed(26);
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count / BULK {
            let bulk = store::after(&mut workload, HOUR, BULK);
            ids.extend(bulk.iter().map(|job| job.id));
            let _ = backend.schedule(bulk).await?;
        }
        backend.close().await?;
        Result::Ok(ids)
    })?;
    let pending = open_in_child(plan, vhost.url())?;
    let each = (pending.resident - empty.resident) / count as f64;
    figures.push(row(&format!("open: {count} pending jobs"), pending.millis));
    figures.push(Figure::new("a pending job in the memory of each process", each, "B"));

    let cancelled = runtime.block_on(cancel_each(vhost.url(), ids))?;
    progress(format_args!("{count} jobs cancelled one by one in {:.1} s", cancelled.as_secs_f64()));
    let tombstones = open_in_child(plan, vhost.url())?;
    let name = format!("open: {count} jobs and as many cancels, each written alone");
    figures.push(row(&name, tombstones.millis));
    Ok(figures)
}

fn row(name: &str, value: f64) -> Figure {
    Figure::new(name, value, "ms").at_most(millis(TARGET))
}

/// Cancels jobs one at a time from [`CALLERS`] backends. The first one opens the log and serves the
/// others.
async fn cancel_each(url: &str, ids: Vec<dq::JobId>) -> Result<Duration> {
    let start = Instant::now();
    let queue = QueueName::new(QUEUE)?;
    let mut callers = Vec::new();
    for ids in ids.chunks(ids.len().div_ceil(CALLERS)) {
        let backend = store::open(url).await?;
        let (ids, queue) = (ids.to_vec(), queue.clone());
        callers.push(tokio::spawn(async move {
            for id in ids {
                backend.cancel(&[JobRef::new(queue.clone(), id)]).await?;
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

#[derive(Debug, Clone, Copy)]
struct Opened {
    millis: f64,
    resident: f64,
}

fn open_in_child(plan: &Plan, url: &str) -> Result<Opened> {
    let (mut times, mut sizes) = (Vec::new(), Vec::new());
    for _ in 0..plan.full_or_quick(5, 2) {
        let output = child_process(READER, [url.as_ref()]).output()?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = stdout.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let (Some(time), Some(cpu), Some(size)) = (words.next(), words.next(), words.next()) else {
            return Err(
                format!("a reader failed: {}", String::from_utf8_lossy(&output.stderr)).into()
            );
        };
        progress(format_args!("opened in {time:.0} ms, {cpu:.0} ms of CPU, {size:.0} bytes"));
        times.push(time);
        sizes.push(size);
    }
    Ok(Opened { millis: median(times), resident: median(sizes) })
}

pub(crate) fn reader(url: &str) -> Result<()> {
    io_runtime().block_on(async {
        let (start, cpu, before) = (Instant::now(), process_cpu(), resident("self"));
        let backend = store::open(url).await?;
        let (took, cpu) = (start.elapsed(), process_cpu() - cpu);
        let grown = resident("self").saturating_sub(before);
        println!("{} {} {grown}", millis(took), millis(cpu));
        Ok(backend.close().await?)
    })
}
