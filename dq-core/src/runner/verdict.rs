//! Decides a job's fate: before the run, if it lost too many leases or is too new, and after it.

use std::time::Duration;

use bytes::Bytes;

use super::events::Event;
use super::shared::ServedQueue;
use super::store::StoreContext;
use crate::backend::{Backend, Verdict, envelope};
use crate::config::QueuePolicy;
use crate::error::{Error, Result};
use crate::handler::{JobContext, JobError, JobResult, Outcome};
use crate::model::{DeadKind, DeadReason, Due, Headers, Job, Timestamp};

/// How long a job waits if only a newer build reads its payload.
const NEWER_VERSION_DELAY: Duration = Duration::from_secs(30);

pub(super) fn before_run(job: &Job, policy: &QueuePolicy) -> Option<DeadReason> {
    (job.losses >= policy.max_losses).then(|| {
        DeadReason::new(
            DeadKind::Lost,
            format!(
                "{} consecutive leases expired before the handler ended; the job may crash its runners",
                job.losses
            ),
        )
    })
}

/// Delays a job whose payload needs a newer build, without using an attempt. `None` if this build
/// may read it.
///
/// Not dead, because old and new builds run side by side during a deployment. Not released, because
/// this runner would claim it again at once.
pub(super) fn newer_version(
    context: &StoreContext,
    served: &ServedQueue,
    job: &Job,
) -> Option<Verdict> {
    let versions = served.handler.versions?;
    let version = job.headers.get(Headers::SCHEMA_VERSION)?.parse().ok()?;
    if version <= versions.current {
        return None;
    }
    tracing::warn!(queue = %job.queue, id = %job.id, version, current = versions.current,
        "the payload is of a newer schema version than this build reads; the job waits for a \
         newer build");
    context.runner.observers.notify(&Event::NewerVersion { job, version });
    Some(Verdict::Snooze(Due::After(NEWER_VERSION_DELAY)))
}

/// `error` is the result's error as text. `started` is by the store's clock, exact enough for the
/// horizon.
pub(super) fn after_run(
    context: &StoreContext,
    served: &ServedQueue,
    job: &JobContext,
    result: &JobResult,
    error: &str,
    started: Timestamp,
) -> Verdict {
    let runner = &context.runner;
    let policy = &served.policy;
    let dead = |kind, message: String| Verdict::dead(DeadReason::new(kind, message));
    let failed_for = |least: Duration, message: String| {
        if job.is_last_attempt() {
            return dead(DeadKind::Exhausted, message);
        }
        // Added, so that jobs told the same time do not all come back at once.
        let delay =
            policy.backoff.delay(job.attempt(), runner.client.environment.entropy.fraction());
        Verdict::retry(Due::After(least.saturating_add(delay)), message)
    };
    let failed = |message| failed_for(Duration::ZERO, message);
    match result {
        Ok(Outcome::Done) => Verdict::Done,
        Ok(Outcome::Skip(reason)) => Verdict::skip(reason.clone()),
        Ok(Outcome::Snooze(due)) => match due.validate(started, runner.client.limits.horizon) {
            Ok(()) => Verdict::Snooze(*due),
            Err(error) => failed(format!("the handler snoozed: {error}")),
        },
        Ok(Outcome::RetryAfter(delay, reason)) => {
            match Due::After(*delay).validate(started, runner.client.limits.horizon) {
                Ok(()) => failed_for(*delay, reason.to_string()),
                Err(error) => failed(format!("{reason}; the handler asked for a retry: {error}")),
            }
        }
        Ok(Outcome::Again(due, payload)) => {
            match again(context, served, job, *due, Some(payload), job.step(), started) {
                Ok(verdict) => verdict,
                Err(error) => failed(format!("the next step of the job: {error}")),
            }
        }
        Ok(Outcome::NextStep(_, _)) if served.handler.escalation.steps.is_empty() => {
            failed("the handler asked for the next step, but has no escalation".to_owned())
        }
        Ok(Outcome::NextStep(due, payload)) => {
            let next = job.step().saturating_add(1);
            let escalation = &served.handler.escalation;
            let Some(delay) =
                usize::try_from(next).ok().and_then(|next| escalation.steps.get(next))
            else {
                let steps = escalation.steps.len();
                let message = format!("step {} was the last of {steps}", job.step());
                return dead(DeadKind::Exhausted, message);
            };
            let due = due.unwrap_or_else(|| match escalation.first_due(job.job()) {
                Some(first_due) => Due::At(first_due + escalation.offset(next)),
                None => Due::After(*delay),
            });
            match again(context, served, job, due, payload.as_ref(), next, started) {
                Ok(verdict) => verdict,
                Err(error) => failed(format!("the next step of the escalation: {error}")),
            }
        }
        Ok(Outcome::Dead(reason)) => dead(DeadKind::Rejected, reason.to_string()),
        Err(JobError::Undecodable(_)) => dead(DeadKind::Undecodable, error.to_owned()),
        Err(_) => failed(error.to_owned()),
    }
}

/// Gives a job another due time, with a step's payload and headers; `None` keeps the payload.
fn again(
    context: &StoreContext,
    served: &ServedQueue,
    job: &JobContext,
    due: Due,
    payload: Option<&Bytes>,
    step: u32,
    started: Timestamp,
) -> Result<Verdict> {
    let limits = &context.runner.client.limits;
    if !context.store.capabilities().again {
        return Err(Error::unsupported(context.store.name(), "next steps of jobs"));
    }
    due.validate(started, limits.horizon)?;
    let mut headers = Headers::new();
    if step > 0 {
        headers.insert(Headers::STEP, step.to_string());
        if let Some(first_due) = served.handler.escalation.first_due(job.job()) {
            headers.insert(Headers::FIRST_DUE, first_due.as_millis().to_string());
        }
    }
    if let Some(versions) = served.handler.versions {
        // A new payload has the handler's version; the job's own may differ.
        let version = match (payload, job.headers().get(Headers::SCHEMA_VERSION)) {
            (None, Some(version)) => version.to_owned(),
            (None, None) => "1".to_owned(),
            (Some(_), _) => versions.current.to_string(),
        };
        headers.insert(Headers::SCHEMA_VERSION, version);
    }
    let payload = payload.unwrap_or_else(|| job.raw_payload());
    limits.check_payload(job.queue(), payload)?;
    Ok(Verdict::Again { due, payload: envelope::wrap(payload.clone(), headers) })
}
