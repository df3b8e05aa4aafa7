//! Runs all due jobs sequentially, for [`Runner::run_due`](super::Runner::run_due).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::execute::execute;
use super::flow;
use super::renew;
use super::shared::{RunnerShared, ServedQueue};
use super::start::EXPIRED_IN_CLAIM;
use super::store::{RunSignals, Start, StoreContext, report_quarantined, report_settled};
use crate::backend::{
    Backend, Checked, ClaimParams, Claimed, LeasedJob, Settlement, Verdict, Want,
};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Timestamp;

/// The result of [`Runner::run_due`](super::Runner::run_due).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunDueReport {
    /// Number of jobs that ran.
    pub jobs: usize,
    /// When the next job is due or the next lease expires, by the store's clock, if any.
    pub next_due: Option<Timestamp>,
}

pub(super) async fn run(
    runner: &Arc<RunnerShared>,
    store: &Arc<Checked>,
    claim_loop: usize,
) -> Result<RunDueReport> {
    // Jobs are settled here one by one; the channel to the settle loop is unused.
    let (context, _finished) =
        StoreContext::new(Arc::clone(runner), Arc::clone(store), claim_loop, TaskTracker::new());
    flow::declare(runner, store).await?;
    let mut jobs = 0;
    loop {
        let (oldest, next_due) = claim_oldest(&context).await?;
        let Some(claimed) = oldest else { return Ok(RunDueReport { jobs, next_due }) };
        run_one(&context, claimed).await?;
        jobs += 1;
    }
}

struct ClaimedJob<'a> {
    served: &'a ServedQueue,
    leased: LeasedJob,
    /// The store's time when it was claimed.
    now: Timestamp,
    /// When the claim was sent, by the lease clock.
    sent_at: Duration,
}

/// Claims the earliest due job of the first level that has one. Also returns when the next job is
/// due or the next lease expires.
async fn claim_oldest(
    context: &StoreContext,
) -> Result<(Option<ClaimedJob<'_>>, Option<Timestamp>)> {
    let mut due_queues = Vec::new();
    for served in &context.runner.queues {
        let Claimed { next_due, .. } = claim(context, served, 0).await?;
        due_queues.extend(next_due.map(|due| (due, served)));
    }
    due_queues.sort_by_key(|(due, served)| (served.policy.priority, *due));
    let next_due = due_queues.iter().map(|(due, _)| *due).min();
    let mut level_without_jobs = None;
    for (due, served) in due_queues {
        if level_without_jobs == Some(served.policy.priority) {
            continue;
        }
        let sent_at = context.leases.clock.now();
        let mut claimed = claim(context, served, 1).await?;
        if let Some(leased) = claimed.jobs.pop() {
            let claimed = ClaimedJob { served, leased, now: claimed.now, sent_at };
            return Ok((Some(claimed), next_due));
        }
        if due > claimed.now {
            level_without_jobs = Some(served.policy.priority);
        }
    }
    Ok((None, next_due))
}

async fn claim(context: &StoreContext, served: &ServedQueue, max: usize) -> Result<Claimed> {
    let lease_for = served.policy.lease;
    let wants = [Want::new(served.queue.clone(), max, lease_for)];
    let params = ClaimParams::new(&wants, max, &context.runner.name);
    let claimed = context.runner.call("claim", context.store.claim(params)).await?;
    report_quarantined(&context.runner, &claimed);
    Ok(claimed)
}

async fn run_one(context: &Arc<StoreContext>, claimed: ClaimedJob<'_>) -> Result<()> {
    let ClaimedJob { served, leased, now, sent_at } = claimed;
    let lease = leased.lease();
    if context.leases.clock.now() >= sent_at + served.policy.lease {
        let release = Settlement::new(lease, Verdict::Release { started: false });
        settle(context, release, false).await?;
        return Err(Error::new(ErrorKind::Unavailable, EXPIRED_IN_CLAIM)
            .remedy("set a longer `lease` if the store is slow; if the clock has jumped, run again")
            .operation("claim"));
    }
    let (guard, _) = context.leases.track(lease.clone(), served.policy.lease, sent_at);
    let signals = RunSignals {
        cancelled: guard.lost.child_token(),
        // No job is claimed while another runs.
        superseded: CancellationToken::new(),
        may_end_job: Arc::clone(&guard.may_end_job),
    };
    let start = Start { started: now, waited_for_slot: false };
    let verdict = tokio::select! {
        biased;
        verdict = execute(context, served, leased, start, signals) => verdict,
        never = renew::run(Arc::clone(context)) => match never {},
    };
    match verdict {
        Some(verdict) => {
            settle(context, Settlement::new(lease, verdict), guard.may_have_ended_job()).await
        }
        None => Ok(()),
    }
}

async fn settle(context: &StoreContext, settlement: Settlement, repeated: bool) -> Result<()> {
    let runner = &context.runner;
    let settlements = [settlement];
    let settle = context.store.settle(&settlements);
    for result in runner.call("settle", settle).await? {
        report_settled(runner, &settlements[0], result, repeated);
    }
    Ok(())
}
