//! A process that is killed in the middle of writing, and the file that it leaves.

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

use super::store::Store;
use crate::lease::claim;
use crate::measure::{resident, runtime};
use crate::plan::{Plan, Result, child_process, progress};
use crate::table::Figure;
use crate::workload::{QUEUE, Workload};

/// The part of this program that is killed.
pub(crate) const VICTIM: &str = "victim";

/// Jobs of one call.
const CALL: usize = 100;

/// Memory for pages, as is the default.
const CACHE_MIB: f64 = 64.0;

/// Where the victim's numbers begin: far above those of the jobs that are there.
const FIRST: u64 = 1 << 28;

/// Stores jobs in a file for ever, and says so each time it was told that they are stored.
pub(crate) fn victim(file: &Path) -> Result<()> {
    runtime(2).block_on(async {
        let backend = SqliteBackend::open(&SqliteConfig::new(file), &environment()).await?;
        let mut workload = Workload::starting_at(4, FIRST);
        let mut out = std::io::stdout().lock();
        loop {
            let jobs = workload.random(SystemTime::now().into(), CALL);
            let answers = backend.schedule(jobs).await?;
            writeln!(out, "{}", answers.iter().filter(|answer| answer.is_stored()).count())?;
            out.flush()?;
        }
    })
}

fn environment() -> Environment {
    Environment { clock: Arc::new(SystemClock), entropy: Arc::new(Entropy::from_os()) }
}

/// Kills a victim at work on this store, and opens what it leaves.
pub(super) fn kill_and_reopen(plan: &Plan, store: Store) -> Result<Vec<Figure>> {
    let before = created(&store)?;
    let path = store.close()?;
    let mut victim = child_process(VICTIM, [OsStr::new(&path)]).stdout(Stdio::piped()).spawn()?;
    let said = victim.stdout.take().ok_or("the victim cannot be heard")?;
    let mut said = BufReader::new(said).lines();
    let work = plan.size(Duration::from_secs(4), Duration::from_millis(300));
    let began = Instant::now();
    let mut acked = 0;
    while began.elapsed() < work {
        let line = said.next().ok_or("the victim died by itself")??;
        acked += line.parse::<u64>()?;
    }
    let memory = resident(&victim.id().to_string()) as f64 / 1e6;
    victim.kill()?;
    victim.wait()?;
    for line in said {
        // The last line may be cut off by the kill; what was not said was not promised.
        acked += line?.parse::<u64>().unwrap_or(0);
    }
    let log = std::fs::metadata(path.with_extension("db-wal")).map_or(0, |log| log.len());
    let began = Instant::now();
    let store = Store::open(plan, "drain.db")?;
    store.let_all_be_due();
    let backend = store.backend();
    store.block_on(async move { claim(&*backend, 1).await })?;
    let reopened = began.elapsed();
    let lost = (before + acked).saturating_sub(created(&store)?);
    progress(format_args!(
        "killed after {acked} jobs, with {:.1} MB in the log; reopened in {:.0} ms",
        log as f64 / 1e6,
        reopened.as_secs_f64() * 1e3
    ));
    store.discard()?;
    Ok(vec![
        Figure::new("memory of a process that writes to it", memory, "MB")
            .at_most(CACHE_MIB * 1.048_576 + 20.0),
        Figure::new("first claim after kill -9, opening included", reopened.as_secs_f64(), "s")
            .at_most(1.0),
        Figure::new("jobs lost of those that were acknowledged", lost as f64, "jobs").at_most(0.0),
    ])
}

/// How many jobs have ever been stored.
fn created(store: &Store) -> Result<u64> {
    let backend = store.backend();
    store.block_on(async move {
        let stats = backend.stats(&[QueueName::new(QUEUE)?]).await?;
        Ok(stats.iter().filter_map(|stats| stats.totals).map(|totals| totals.created).sum())
    })
}
