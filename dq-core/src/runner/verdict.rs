//! Decides what happens to a job after a run: done, retry, snooze or dead.

use crate::backend::Verdict;
use crate::config::QueuePolicy;
use crate::entropy::Entropy;
use crate::handler::{JobContext, JobError, JobResult, Outcome};
use crate::model::{DeadKind, DeadReason, Due, Job, Limits, Timestamp};

/// The verdict on a job that must not run again because too many consecutive leases expired; `None`
/// if it may run.
pub(super) fn before_run(job: &Job, policy: &QueuePolicy) -> Option<Verdict> {
    (job.losses >= policy.max_losses).then(|| Verdict::Dead {
        reason: DeadReason::new(
            DeadKind::Lost,
            format!(
                "{} consecutive leases expired before the handler ended; the job may crash its runners",
                job.losses
            ),
        ),
        failed: false,
    })
}

/// The verdict on the result of a run. `now` is by the store's clock.
pub(super) fn after_run(
    job: &JobContext,
    result: &JobResult,
    policy: &QueuePolicy,
    limits: &Limits,
    now: Timestamp,
    entropy: &Entropy,
) -> Verdict {
    let dead = |kind, message: String, failed| Verdict::Dead {
        reason: DeadReason::new(kind, message),
        failed,
    };
    let failed = |message: String| {
        if job.is_last_attempt() {
            dead(DeadKind::Exhausted, message, true)
        } else {
            Verdict::Retry(Due::After(policy.backoff.delay(job.attempt(), entropy.fraction())))
        }
    };
    match result {
        Ok(Outcome::Done) => Verdict::Done,
        Ok(Outcome::Skip(_)) => Verdict::Skip,
        Ok(Outcome::Snooze(due)) => match due.validate(now, limits.horizon) {
            Ok(()) => Verdict::Snooze(*due),
            Err(error) => failed(format!("the handler snoozed: {error}")),
        },
        Ok(Outcome::Dead(reason)) => dead(DeadKind::Rejected, reason.to_string(), true),
        Err(error @ JobError::Undecodable(_)) => {
            dead(DeadKind::Undecodable, error.to_string(), false)
        }
        Err(error) => failed(error.to_string()),
    }
}
