//! Runs what is due here and now, one job after the other.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::execute::execute;
use super::renew;
use super::source::{Source, tell};
use super::{Machine, RanDue, Served};
use crate::backend::{Backend, Checked, ClaimParams, Claimed, LeasedJob, Settlement, Want};
use crate::error::Result;
use crate::model::Timestamp;

/// See [`super::Runner::run_due`].
pub(super) async fn run(
    machine: &Arc<Machine>,
    store: &Arc<Checked>,
    number: usize,
) -> Result<RanDue> {
    // Settlements are made here, one by one; the way to a settler stays unused.
    let (source, _settlements) =
        Source::new(Arc::clone(machine), Arc::clone(store), number, TaskTracker::new());
    let source = Arc::new(source);
    let mut jobs = 0;
    loop {
        let (next, next_due) = oldest(&source).await?;
        let Some((served, leased, now)) = next else { return Ok(RanDue { jobs, next_due }) };
        run_one(&source, served, leased, now).await?;
        jobs += 1;
    }
}

/// Leases the job that has been due longest of all queues; or says when one will be due.
async fn oldest(source: &Source) -> Result<(Option<Due<'_>>, Option<Timestamp>)> {
    let mut fronts = Vec::new();
    for served in &source.machine.served {
        let Claimed { next_due, .. } = claim(source, served, 0).await?;
        fronts.extend(next_due.map(|due| (due, served)));
    }
    fronts.sort_by_key(|(due, _)| *due);
    let next_due = fronts.first().map(|(due, _)| *due);
    for (due, served) in fronts {
        let mut claimed = claim(source, served, 1).await?;
        if let Some(leased) = claimed.jobs.pop() {
            return Ok((Some((served, leased, claimed.now)), next_due));
        }
        // The others are due later still.
        if due > claimed.now {
            break;
        }
    }
    Ok((None, next_due))
}

type Due<'a> = (&'a Served, LeasedJob, Timestamp);

async fn claim(source: &Source, served: &Served, max: usize) -> Result<Claimed> {
    let lease_for = served.policy.lease;
    let wants = [Want { queue: served.queue.clone(), max, lease_for }];
    let worker = &source.machine.name;
    source.store.claim(ClaimParams { wants: &wants, limit: max, worker }).await
}

async fn run_one(
    source: &Arc<Source>,
    served: &Served,
    leased: LeasedJob,
    now: Timestamp,
) -> Result<()> {
    let machine = &source.machine;
    let lease = leased.lease();
    let granted = machine.clock().elapsed();
    let hold = source.leases.hold(lease.clone(), served.policy.lease, granted);
    let verdict = tokio::select! {
        biased;
        verdict = execute(machine, served, leased, now, hold.lost.child_token()) => verdict,
        never = renew::run(Arc::clone(source)) => match never {},
    };
    let settlements = [Settlement { lease, verdict }];
    for answer in source.store.settle(&settlements).await? {
        tell(machine, &settlements[0], answer, false);
    }
    Ok(())
}
