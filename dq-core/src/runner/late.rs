//! Applies a queue's late policy to a job that is about to start.

use std::time::Duration;

use super::events::Event;
use super::shared::{RunnerShared, ServedQueue};
use super::store::{Before, RunSignals, Start, StoreContext};
use crate::backend::{Backend, Verdict};
use crate::config::{LateAction, QueuePolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Backoff, DeadKind, DeadReason, Due, Headers, Job, JobId, NewJob, QueueName,
    format_exact_duration,
};

/// How long a moved job's id stays pinned after its end. The original job may run again and move
/// again within this time.
const REMEMBER: Duration = Duration::from_secs(86_400);

const RETRY: Backoff = Backoff {
    initial: Duration::from_millis(500),
    factor: 2.0,
    max: Duration::from_secs(15),
    jitter: 0.0,
};

pub(super) fn refuse_rings(queues: &[ServedQueue]) -> Result<()> {
    for ServedQueue { queue, .. } in queues {
        let mut path = vec![queue];
        while let Some(target) = path.last().and_then(|last| target_of(queues, last)) {
            if target == queue {
                path.push(target);
                let path: Vec<_> = path.into_iter().map(QueueName::as_str).collect();
                let message = format!("late.then moves late jobs in a ring: {}", path.join(", "));
                return Err(Error::new(ErrorKind::Config, message).remedy(
                    "let one of these queues run, skip or end them: \"run\", \"skip\" or \"dead\"",
                ));
            }
            // A ring without this queue is found from one of its own queues.
            if path.contains(&target) {
                break;
            }
            path.push(target);
        }
    }
    Ok(())
}

fn target_of<'a>(queues: &'a [ServedQueue], queue: &QueueName) -> Option<&'a QueueName> {
    let served = queues.iter().find(|served| served.queue == *queue)?;
    match &served.policy.late.as_ref()?.then {
        LateAction::Queue(target) => Some(target),
        _ => None,
    }
}

pub(super) async fn apply(
    context: &StoreContext,
    policy: &QueuePolicy,
    job: &Job,
    start: Start,
    signals: &RunSignals,
) -> Before {
    let Some(policy) = &policy.late else { return Before::Runs };
    let lateness = start.started.since(job.due);
    if lateness <= policy.after {
        return Before::Runs;
    }
    let [late, limit] = [lateness, policy.after].map(format_exact_duration);
    let reason = format!("started {late} after its due time; the limit is {limit}");
    tracing::warn!(queue = %job.queue, id = %job.id, then = %policy.then, "late: {reason}");
    context.runner.observers.notify(&Event::Late { job, lateness, then: &policy.then });
    match &policy.then {
        LateAction::Run => Before::Runs,
        LateAction::Skip => Before::Ends(Some(Verdict::skip(reason))),
        LateAction::Dead => Before::Ends(Some(dead(&context.runner, job, reason))),
        LateAction::Queue(target) => {
            Before::Ends(move_to(context, target, job, &reason, signals).await)
        }
    }
}

fn dead(runner: &RunnerShared, job: &Job, message: String) -> Verdict {
    let reason = DeadReason::new(DeadKind::Late, message);
    runner.observers.notify(&Event::Dead { job, reason: &reason });
    Verdict::dead(reason)
}

/// Schedules the job in another queue, then ends it here.
///
/// A crash in between repeats the call with the same id, which changes nothing while the moved job
/// is live or its id pinned. While the store is unavailable, the job waits and keeps its lease.
/// Returns `None` if the lease is lost.
async fn move_to(
    context: &StoreContext,
    target: &QueueName,
    job: &Job,
    reason: &str,
    signals: &RunSignals,
) -> Option<Verdict> {
    let runner = &context.runner;
    let mut failures = 0;
    loop {
        let error = match runner.call("schedule", schedule_in(runner, target, job)).await {
            Ok(id) => {
                return Some(Verdict::skip(format!("{reason}; moved to {target} as job {id}")));
            }
            Err(error) if error.is_retryable() => error,
            Err(error) => {
                let message = format!("{reason}; it could not be moved to {target}: {error}");
                return Some(dead(runner, job, message));
            }
        };
        tracing::warn!(%error, "a late job could not be moved; trying again");
        runner.observers.notify(&Event::StoreFailed(&error));
        failures += 1;
        tokio::select! {
            () = runner.clock().sleep(RETRY.delay(failures, 0.0)) => {}
            () = runner.abort.cancelled() => return Some(Verdict::Release { started: false }),
            () = signals.cancelled.cancelled() => return None,
            () = signals.superseded.cancelled() => return None,
        }
    }
}

async fn schedule_in(runner: &RunnerShared, target: &QueueName, job: &Job) -> Result<JobId> {
    let stores = &runner.client.stores;
    let id = moved_id(job);
    let mut new = NewJob::new(id, target.clone(), Due::NOW, job.payload.clone());
    // The escalation belongs to the queue that the job leaves.
    let escalation_headers = [Headers::STEP, Headers::FIRST_DUE];
    let kept_headers = job.headers.iter().filter(|(name, _)| !escalation_headers.contains(name));
    new.headers = kept_headers.collect();
    new.max_attempts = job.max_attempts;
    if stores.main.capabilities().history {
        new.remember = REMEMBER;
    }
    if let Some(key) = &job.key {
        let keyed = new.clone().key(key.clone());
        let scheduled = stores.schedule(vec![keyed]).await?;
        if scheduled.iter().all(|scheduled| scheduled.is_stored() || scheduled.id() == id) {
            return Ok(id);
        }
        // Another job in the target queue has the key; without the key this job is not lost.
    }
    stores.schedule(vec![new]).await?;
    Ok(id)
}

/// Returns the moved job's id: the same whenever this job moves at this due time.
///
/// It is not the job's own id, because ids are unique in a store.
fn moved_id(job: &Job) -> JobId {
    const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let due = job.due.as_millis().to_be_bytes();
    let created = job.created.as_millis().to_be_bytes();
    let parts: [&[u8]; 4] = [&job.id.to_bytes(), job.queue.as_str().as_bytes(), &due, &created];
    let mut hash = OFFSET_BASIS;
    for byte in parts.into_iter().flatten() {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    }
    let mut bytes = hash.to_be_bytes();
    // Ids sort by the time in their first six bytes.
    bytes[..6].copy_from_slice(&job.id.to_bytes()[..6]);
    // Version 8 (application-defined) and variant, RFC 9562.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    JobId::from_bytes(bytes)
}
