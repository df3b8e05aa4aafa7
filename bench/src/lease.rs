//! Claims and settles whole batches on any backend.

use std::time::Duration;

use dq::backend::{Backend, ClaimParams, Settlement, Want};
use dq::{Lease, QueueName, Settled, Verdict};

use crate::plan::Result;
use crate::workload::{BATCH, QUEUE};

pub(crate) async fn claim(backend: &dyn Backend, max: usize) -> Result<Vec<Lease>> {
    let wants = [Want::new(QueueName::new(QUEUE)?, max, Duration::from_secs(300))];
    let params = ClaimParams::new(&wants, max, "dq-bench");
    let claimed = backend.claim(params).await?;
    if claimed.jobs.len() != max {
        return Err(format!("a claim returned {} of {max} jobs", claimed.jobs.len()).into());
    }
    Ok(claimed.jobs.iter().map(|job| job.lease()).collect())
}

pub(crate) async fn settle(backend: &dyn Backend, leases: &[Lease]) -> Result<()> {
    let done = |lease: &Lease| Settlement::new(lease.clone(), Verdict::Done);
    let settlements: Vec<_> = leases.iter().map(done).collect();
    let settled = backend.settle(&settlements).await?;
    if settled.iter().any(|settled| *settled != Settled::Accepted) {
        return Err("a lease was lost".into());
    }
    Ok(())
}

/// Claims and settles due jobs, [`BATCH`] at a time; `jobs` is a multiple of it.
pub(crate) async fn drain(backend: &dyn Backend, jobs: usize) -> Result<()> {
    for _ in 0..jobs / BATCH {
        let leases = claim(backend, BATCH).await?;
        settle(backend, &leases).await?;
    }
    Ok(())
}
