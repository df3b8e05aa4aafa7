//! Runs all due jobs sequentially, for [`Runner::run_due`](super::Runner::run_due).

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::execute::execute;
use super::renew;
use super::shared::{RunnerShared, ServedQueue};
use super::store::{StoreContext, report_settled};
use crate::backend::{Backend, Checked, ClaimParams, Claimed, LeasedJob, Settlement, Want};
use crate::error::Result;
use crate::model::Timestamp;

/// The result of [`Runner::run_due`](super::Runner::run_due).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunDueReport {
    /// Number of jobs that ran.
    pub jobs: usize,
    /// When the next job is due or the next lease ends, by the store's clock; `None` if no job
    /// waits or is leased.
    pub next_due: Option<Timestamp>,
}

/// Runs all due jobs of one store.
pub(super) async fn run(
    runner: &Arc<RunnerShared>,
    store: &Arc<Checked>,
    index: usize,
) -> Result<RunDueReport> {
    // Jobs are settled here, one by one; the channel to the settle loop is not used.
    let (context, _finished) =
        StoreContext::new(Arc::clone(runner), Arc::clone(store), index, TaskTracker::new());
    let context = Arc::new(context);
    let mut jobs = 0;
    loop {
        let (oldest, next_due) = claim_oldest(&context).await?;
        let Some(claimed) = oldest else { return Ok(RunDueReport { jobs, next_due }) };
        run_one(&context, claimed).await?;
        jobs += 1;
    }
}

/// A claimed job, its queue, and the store's time of the claim.
struct ClaimedJob<'a> {
    served: &'a ServedQueue,
    leased: LeasedJob,
    now: Timestamp,
}

/// Claims the job with the earliest due time over all queues; `None` if none is due. Also returns
/// the earliest time at which a job is due or its lease ends; `None` if no job waits or is leased.
async fn claim_oldest(
    context: &StoreContext,
) -> Result<(Option<ClaimedJob<'_>>, Option<Timestamp>)> {
    let mut due_queues = Vec::new();
    for served in &context.runner.queues {
        let Claimed { next_due, .. } = claim(context, served, 0).await?;
        due_queues.extend(next_due.map(|due| (due, served)));
    }
    due_queues.sort_by_key(|(due, _)| *due);
    let next_due = due_queues.first().map(|(due, _)| *due);
    for (due, served) in due_queues {
        let mut claimed = claim(context, served, 1).await?;
        if let Some(leased) = claimed.jobs.pop() {
            return Ok((Some(ClaimedJob { served, leased, now: claimed.now }), next_due));
        }
        // The remaining queues are due later.
        if due > claimed.now {
            break;
        }
    }
    Ok((None, next_due))
}

/// Claims at most `max` jobs of one queue.
async fn claim(context: &StoreContext, served: &ServedQueue, max: usize) -> Result<Claimed> {
    let lease_for = served.policy.lease;
    let wants = [Want { queue: served.queue.clone(), max, lease_for }];
    let worker = &context.runner.name;
    context.store.claim(ClaimParams { wants: &wants, limit: max, worker }).await
}

/// Runs one job and settles it.
async fn run_one(context: &Arc<StoreContext>, claimed: ClaimedJob<'_>) -> Result<()> {
    let ClaimedJob { served, leased, now } = claimed;
    let runner = &context.runner;
    let lease = leased.lease();
    let claimed_at = runner.clock().elapsed();
    let guard = context.leases.track(lease.clone(), served.policy.lease, claimed_at);
    let verdict = tokio::select! {
        biased;
        verdict = execute(runner, served, leased, now, guard.lost.child_token()) => verdict,
        never = renew::run(Arc::clone(context)) => match never {},
    };
    let settlements = [Settlement { lease, verdict }];
    for result in context.store.settle(&settlements).await? {
        report_settled(runner, &settlements[0], result, false);
    }
    Ok(())
}
