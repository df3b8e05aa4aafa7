//! File recovery after killing a process that schedules jobs, the victim.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dq::backend::Backend;
use dq::config::Environment;
use dq::sqlite::{SqliteBackend, SqliteConfig};
use dq::{Entropy, QueueName, SystemClock};

use super::store::SqliteStore;
use crate::lease::claim;
use crate::measure::{resident, runtime};
use crate::plan::{Plan, Result, child_process, progress};
use crate::table::Figure;
use crate::workload::{QUEUE, Workload};

pub(crate) const VICTIM: &str = "victim";

const CALL_JOBS: usize = 100;

/// The backend's default page cache size in MiB.
const CACHE_MIB: f64 = 64.0;

/// The victim's first job number, far above the existing jobs.
const FIRST: u64 = 1 << 28;

/// Stores jobs until killed. Prints each acknowledged call's job count.
pub(crate) fn victim(file: &Path) -> Result<()> {
    runtime(2).block_on(async {
        let backend = SqliteBackend::open(&SqliteConfig::new(file), &environment()).await?;
        let mut workload = Workload::with_seed(4).numbered_from(FIRST);
        let mut out = std::io::stdout().lock();
        loop {
            let jobs = workload.random(SystemTime::now().into(), CALL_JOBS);
            let scheduled = backend.schedule(jobs).await?;
            writeln!(out, "{}", scheduled.iter().filter(|job| job.is_stored()).count())?;
            out.flush()?;
        }
    })
}

fn environment() -> Environment {
    Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()))
}

pub(super) fn kill_and_reopen(plan: &Plan, store: SqliteStore) -> Result<Vec<Figure>> {
    let before = created(&store)?;
    let path = store.close()?;
    let mut victim = child_process(VICTIM, [OsStr::new(&path)]).stdout(Stdio::piped()).spawn()?;
    let stdout = victim.stdout.take().ok_or("the victim has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let work = plan.full_or_quick(Duration::from_secs(4), Duration::from_millis(300));
    let start = Instant::now();
    let mut acked = 0;
    while start.elapsed() < work {
        let line = lines.next().ok_or("the victim exited before the kill")??;
        acked += line.parse::<u64>()?;
    }
    let memory = resident(&victim.id().to_string()) as f64 / 1e6;
    victim.kill()?;
    victim.wait()?;
    for line in lines {
        // The kill may truncate the last line; a call without a line is not acknowledged.
        acked += line?.parse::<u64>().unwrap_or(0);
    }
    let log = std::fs::metadata(path.with_extension("db-wal")).map_or(0, |log| log.len());
    let start = Instant::now();
    // `path` is absolute, so joining it to the plan's directory changes nothing.
    let store = SqliteStore::open(plan, &path)?;
    store.make_all_due();
    let backend = store.backend();
    store.block_on(async move { claim(&*backend, 1).await })?;
    let reopened = start.elapsed();
    let lost = (before + acked).saturating_sub(created(&store)?);
    progress(format_args!(
        "killed after {acked} jobs, with {:.1} MB in the log; reopened in {:.0} ms",
        log as f64 / 1e6,
        reopened.as_secs_f64() * 1e3
    ));
    store.discard()?;
    Ok(vec![
        Figure::new("memory of a process that schedules jobs", memory, "MB")
            // The page cache, plus 20 MB for everything else.
            .at_most(CACHE_MIB * 1.048_576 + 20.0),
        Figure::new("first claim after kill -9, opening included", reopened.as_secs_f64(), "s")
            .at_most(1.0),
        Figure::new("jobs lost of those that were acknowledged", lost as f64, "jobs").at_most(0.0),
    ])
}

fn created(store: &SqliteStore) -> Result<u64> {
    let backend = store.backend();
    store.block_on(async move {
        let stats = backend.stats(&[QueueName::new(QUEUE)?]).await?;
        Ok(stats.iter().filter_map(|stats| stats.totals).map(|totals| totals.created).sum())
    })
}
