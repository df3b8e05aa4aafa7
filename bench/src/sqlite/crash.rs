//! File recovery after killing a process that schedules jobs, the victim.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use dq::backend::Backend;

use crate::measure::{Plan, Result, block_on, child_process};
use crate::store::{Store, open};
use crate::table::Figure;
use crate::workload::{Workload, claim, now, queue};

pub(crate) const VICTIM: &str = "victim";

const CALL_JOBS: usize = 100;

/// The victim's first job number, far above the existing jobs.
const FIRST: u64 = 1 << 28;

/// Stores jobs until killed. Prints each acknowledged call's job count.
pub(crate) fn victim(url: &str) -> Result<()> {
    block_on(async {
        let backend = open(url).await?;
        let mut workload = Workload::with_seed(4).numbered_from(FIRST);
        let mut out = std::io::stdout().lock();
        loop {
            let scheduled = backend.schedule(workload.random(now(), CALL_JOBS)).await?;
            writeln!(out, "{}", scheduled.iter().filter(|job| job.is_stored()).count())?;
            out.flush()?;
        }
    })
}

/// Closes the backend, kills a victim that writes to its file, and opens the file again.
pub(super) fn kill_and_reopen(
    plan: &Plan,
    store: &Store,
    backend: &dyn Backend,
) -> Result<Vec<Figure>> {
    let before = block_on(created(backend))?;
    block_on(backend.close())?;
    let url = format!("sqlite://{}", store.address());
    let mut victim = child_process(VICTIM, &[&url]).stdout(Stdio::piped()).spawn()?;
    let stdout = victim.stdout.take().ok_or("the victim has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let work = plan.full_or_quick(Duration::from_secs(4), Duration::from_millis(300));
    let start = Instant::now();
    let mut acked = 0;
    while start.elapsed() < work {
        let line = lines.next().ok_or("the victim exited before the kill")??;
        acked += line.parse::<u64>()?;
    }
    victim.kill()?;
    victim.wait()?;
    for line in lines {
        // The kill may truncate the last line; a call without a line is not acknowledged.
        acked += line?.parse::<u64>().unwrap_or(0);
    }
    let start = Instant::now();
    let (reopened, lost) = block_on(async {
        let backend = open(&url).await?;
        claim(&*backend, 1).await?;
        let reopened = start.elapsed();
        let lost = (before + acked).saturating_sub(created(&*backend).await?);
        backend.close().await?;
        Result::Ok((reopened, lost))
    })?;
    Ok(vec![
        Figure::new("first claim after kill -9, opening included", reopened.as_secs_f64(), "s")
            .at_most(1.0),
        Figure::new("jobs lost of those that were acknowledged", lost as f64, "jobs").at_most(0.0),
    ])
}

async fn created(backend: &dyn Backend) -> Result<u64> {
    let stats = backend.stats(&[queue()]).await?;
    Ok(stats.iter().filter_map(|stats| stats.totals).map(|totals| totals.created).sum())
}
