//! What happens to a claimed job before its handler starts, here or in another process.

use super::events::Event;
use super::late;
use super::objective;
use super::shared::RunnerShared;
use super::store::{Before, RunSignals, Start, StoreContext};
use super::verdict::{NEWER_VERSION_DELAY, VerdictRules};
use crate::backend::Verdict;
use crate::model::{Due, Job};

/// Decides whether a claimed job runs, and counts its start for the lateness objective.
pub(super) async fn before_run(
    context: &StoreContext,
    rules: &VerdictRules<'_>,
    job: &Job,
    start: Start,
    signals: &RunSignals,
) -> Before {
    if let Some(verdict) = verdict_before_run(&context.runner, rules, job) {
        return Before::Ends(Some(verdict));
    }
    objective::record_start(context, &rules.policy.flow, job, start);
    late::apply(context, rules.policy, job, start, signals).await
}

/// Returns the verdict on a job that lost too many leases, or whose payload is too new.
fn verdict_before_run(
    runner: &RunnerShared,
    rules: &VerdictRules<'_>,
    job: &Job,
) -> Option<Verdict> {
    if let Some(reason) = rules.dead_before_run(job) {
        tracing::error!(queue = %job.queue, id = %job.id, %reason, "dead without another run");
        runner.observers.notify(&Event::Dead { job, reason: &reason });
        return Some(Verdict::dead(reason));
    }
    let version = rules.newer_version(job)?;
    tracing::warn!(queue = %job.queue, id = %job.id, version, current = rules.schema_version,
        "the payload is of a newer schema version than this build reads; the job waits for a \
         newer build");
    runner.observers.notify(&Event::NewerVersion { job, version });
    // A released job would be claimed again at once.
    Some(Verdict::Snooze(Due::After(NEWER_VERSION_DELAY)))
}
