//! Claims and settlements of whole batches, of whatever backend.

use std::time::Duration;

use dq::backend::{Backend, ClaimParams, Settlement, Want};
use dq::{Lease, QueueName, Settled, Verdict};

use crate::Result;
use crate::workload::QUEUE;

/// Leases exactly `max` jobs.
pub(crate) async fn claim(backend: &dyn Backend, max: usize) -> Result<Vec<Lease>> {
    let want = Want { queue: QueueName::new(QUEUE)?, max, lease_for: Duration::from_secs(300) };
    let params = ClaimParams { wants: &[want], limit: max, worker: "dq-bench" };
    let claimed = backend.claim(params).await?;
    if claimed.jobs.len() != max {
        return Err(format!("a claim brought {} of {max} jobs", claimed.jobs.len()).into());
    }
    Ok(claimed.jobs.iter().map(|job| job.lease()).collect())
}

/// Done with each of them.
pub(crate) async fn settle(backend: &dyn Backend, leases: &[Lease]) -> Result<()> {
    let done = |lease: &Lease| Settlement { lease: lease.clone(), verdict: Verdict::Done };
    let settlements: Vec<_> = leases.iter().map(done).collect();
    let settled = backend.settle(&settlements).await?;
    if settled.iter().any(|answer| *answer != Settled::Accepted) {
        return Err("a lease was lost".into());
    }
    Ok(())
}
