//! Decides what happens to a job: the one place that turns a run's result into a [`Verdict`].
//!
//! The rules need no runner. Whoever holds a job's lease and knows how the run ended can apply
//! them, and then settles the lease with the verdict.

use std::time::Duration;

use bytes::Bytes;

use crate::backend::{Backend, Checked, Verdict, envelope};
use crate::config::QueuePolicy;
use crate::entropy::Entropy;
use crate::error::{Error, Result};
use crate::handler::{Escalation, JobError, JobResult, Outcome};
use crate::model::{DeadKind, DeadReason, Due, Headers, Job, Limits, Timestamp};

/// How long a job waits if only a newer build reads its payload.
pub(crate) const NEWER_VERSION_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
pub(crate) struct VerdictRules<'a> {
    pub(crate) policy: &'a QueuePolicy,
    pub(crate) escalation: &'a Escalation,
    pub(crate) schema_version: Option<u32>,
    pub(crate) limits: &'a Limits,
    pub(crate) entropy: &'a Entropy,
    pub(crate) store: &'a Checked,
}

/// The same job with another due time, and possibly another payload and escalation step.
struct NextStep<'a> {
    due: Due,
    payload: Option<&'a Bytes>,
    escalation_step: u32,
}

impl VerdictRules<'_> {
    /// Returns why a job is dead without another run: it has lost too many leases.
    pub(crate) fn dead_before_run(&self, job: &Job) -> Option<DeadReason> {
        if job.losses < self.policy.max_losses {
            return None;
        }
        let message = format!(
            "{} consecutive leases expired before the handler ended; the job may crash its runners",
            job.losses
        );
        Some(DeadReason::new(DeadKind::Lost, message))
    }

    /// Returns the payload's schema version if only a newer build reads it.
    ///
    /// The job should then wait for [`NEWER_VERSION_DELAY`]. It is not dead, because old and new
    /// builds run side by side during a deployment.
    pub(crate) fn newer_version(&self, job: &Job) -> Option<u32> {
        let current = self.schema_version?;
        let version = job.headers.get(Headers::SCHEMA_VERSION)?.parse().ok()?;
        (version > current).then_some(version)
    }

    /// Returns the verdict on a run that started at `started`, by the store's clock.
    pub(crate) fn after_run(
        &self,
        job: &Job,
        result: &JobResult,
        error: &str,
        started: Timestamp,
    ) -> Verdict {
        match result {
            Ok(outcome) => self
                .after_outcome(job, outcome, started)
                .unwrap_or_else(|message| self.failed(job, message, Duration::ZERO)),
            Err(JobError::Undecodable(_)) => dead(DeadKind::Undecodable, error),
            Err(_) => self.failed(job, error.to_owned(), Duration::ZERO),
        }
    }

    /// Returns the verdict on a successful run, or why its outcome is invalid.
    pub(super) fn after_outcome(
        &self,
        job: &Job,
        outcome: &Outcome,
        started: Timestamp,
    ) -> Result<Verdict, String> {
        let horizon = self.limits.horizon;
        match outcome {
            Outcome::Done => Ok(Verdict::Done),
            Outcome::Skip(reason) => Ok(Verdict::skip(reason.clone())),
            Outcome::Dead(reason) => Ok(dead(DeadKind::Rejected, reason.clone())),
            Outcome::Snooze(due) => match due.validate(started, horizon) {
                Ok(()) => Ok(Verdict::Snooze(*due)),
                Err(error) => Err(format!("the handler snoozed: {error}")),
            },
            Outcome::Throttle(due) => {
                let supported = match self.store.capabilities().flow {
                    true => Ok(()),
                    false => Err(Error::unsupported(self.store.name(), "throttled queues")),
                };
                match due.validate(started, horizon).and(supported) {
                    Ok(()) => Ok(Verdict::Throttle(*due)),
                    Err(error) => Err(format!("the handler throttled its queue: {error}")),
                }
            }
            Outcome::RetryAfter(delay, reason) => {
                match Due::After(*delay).validate(started, horizon) {
                    Ok(()) => Ok(self.failed(job, reason.to_string(), *delay)),
                    Err(error) => Err(format!("{reason}; the handler asked for a retry: {error}")),
                }
            }
            Outcome::Again(due, payload) => {
                let (payload, escalation_step) = (Some(payload), job.step());
                self.again(job, NextStep { due: *due, payload, escalation_step }, started)
                    .map_err(|error| format!("the next step of the job: {error}"))
            }
            Outcome::NextStep(due, payload) => self.escalate(job, *due, payload.as_ref(), started),
        }
    }

    /// Fails an attempt: the job is retried after its backoff, or dead after its last attempt.
    ///
    /// The backoff is added to `delay`, so that jobs told the same delay do not all come back at
    /// once.
    pub(super) fn failed(&self, job: &Job, message: String, delay: Duration) -> Verdict {
        let attempt = job.attempts.saturating_add(1);
        if attempt >= job.max_attempts.unwrap_or(self.policy.max_attempts) {
            return dead(DeadKind::Exhausted, message);
        }
        let backoff = self.policy.backoff.delay(attempt, self.entropy.fraction());
        Verdict::retry(Due::After(delay.saturating_add(backoff)), message)
    }

    /// Goes on to the next escalation step, at `due` or at the step's own time.
    fn escalate(
        &self,
        job: &Job,
        due: Option<Due>,
        payload: Option<&Bytes>,
        started: Timestamp,
    ) -> Result<Verdict, String> {
        let delays = &self.escalation.steps;
        if delays.is_empty() {
            return Err("the handler asked for the next step, but has no escalation".to_owned());
        }
        let escalation_step = job.step().saturating_add(1);
        let Some(delay) = usize::try_from(escalation_step).ok().and_then(|step| delays.get(step))
        else {
            let message = format!("step {} was the last of {}", job.step(), delays.len());
            return Ok(dead(DeadKind::Exhausted, message));
        };
        let due = due.unwrap_or_else(|| match self.escalation.first_due(job) {
            Some(first_due) => Due::At(first_due + self.escalation.offset(escalation_step)),
            None => Due::After(*delay),
        });
        self.again(job, NextStep { due, payload, escalation_step }, started)
            .map_err(|error| format!("the next step of the escalation: {error}"))
    }

    fn again(&self, job: &Job, next: NextStep<'_>, started: Timestamp) -> Result<Verdict> {
        if !self.store.capabilities().again {
            return Err(Error::unsupported(self.store.name(), "next steps of jobs"));
        }
        next.due.validate(started, self.limits.horizon)?;
        let payload = next.payload.unwrap_or(&job.payload);
        self.limits.check_payload(&job.queue, payload)?;
        let payload = envelope::wrap(payload.clone(), self.next_headers(job, &next));
        Ok(Verdict::Again { due: next.due, payload })
    }

    fn next_headers(&self, job: &Job, next: &NextStep<'_>) -> Headers {
        let mut headers = Headers::new();
        if next.escalation_step > 0 {
            headers.insert(Headers::STEP, next.escalation_step.to_string());
            if let Some(first_due) = self.escalation.first_due(job) {
                headers.insert(Headers::FIRST_DUE, first_due.as_millis().to_string());
            }
        }
        if let Some(current) = self.schema_version {
            // A kept payload keeps its version; the handler writes a new one in its own.
            let version = match next.payload {
                Some(_) => current.to_string(),
                None => job.headers.get(Headers::SCHEMA_VERSION).unwrap_or("1").to_owned(),
            };
            headers.insert(Headers::SCHEMA_VERSION, version);
        }
        headers
    }
}

fn dead(kind: DeadKind, message: impl Into<String>) -> Verdict {
    Verdict::dead(DeadReason::new(kind, message))
}
