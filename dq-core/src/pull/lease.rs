//! A worker's lease, and what becomes of it.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::backend::{FencingToken, Lease, LeasedJob};
use crate::handler::Outcome;
use crate::model::{
    DeadKind, Ending, Headers, Job, JobId, JobState, JobView, QueueName, Timestamp,
};

/// A lease in a worker's hands, with what the settlement of its job needs.
///
/// Serialize it for the worker, and sign the text: a server trusts each field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullLease {
    #[serde(rename = "q")]
    pub(super) queue: QueueName,
    #[serde(rename = "j")]
    pub(super) job: JobId,
    #[serde(rename = "t")]
    token: u64,
    /// The store's number: 0 is the main store.
    #[serde(rename = "s")]
    pub(super) store: usize,
    #[serde(rename = "w")]
    pub(super) worker: String,
    #[serde(rename = "ms")]
    lease_ms: u64,
    #[serde(rename = "a")]
    attempts: u32,
    #[serde(rename = "m")]
    max_attempts: Option<u32>,
    #[serde(rename = "d")]
    deliveries: u32,
    #[serde(rename = "l")]
    losses: u32,
    #[serde(rename = "e")]
    step: u32,
}

/// How a worker's run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullOutcome {
    /// As a handler's outcome.
    Returned(Outcome),
    /// The run failed with this error.
    Failed(String),
    /// The worker stopped before the end; the job is due again at once.
    Released,
}

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullRenewed {
    /// The lease expires at this time, by the store's clock.
    Until(Timestamp),
    /// The lease is no longer held.
    Lost(Loss),
}

/// The result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullSettled {
    /// The outcome counts, by this call or an earlier one.
    Settled,
    /// The lease is no longer held, and nothing changed.
    Lost(Loss),
}

/// Why a lease is lost, as far as the store can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The lease expired: the job waits, or runs elsewhere.
    Expired,
    /// The job has ended since.
    Ended(Ending),
    /// The job has died since.
    Dead,
    /// The store does not know the job any more.
    Unknown,
}

impl Loss {
    /// Returns the cause's name: `expired`, `dead`, `unknown`, or that of the [`Ending`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Ended(ending) => ending.as_str(),
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }

    pub(super) const fn of(view: Option<&JobView>) -> Self {
        let Some(view) = view else { return Self::Unknown };
        match (&view.ended, view.state) {
            (Some(ended), _) => Self::Ended(ended.ending),
            (None, JobState::Dead) => Self::Dead,
            (None, _) => Self::Expired,
        }
    }
}

impl PullLease {
    pub(super) fn new(leased: &LeasedJob, store: usize, worker: &str, lease_for: Duration) -> Self {
        let job = &leased.job;
        Self {
            queue: job.queue.clone(),
            job: job.id,
            token: leased.token.0,
            store,
            worker: worker.to_owned(),
            lease_ms: u64::try_from(lease_for.as_millis()).unwrap_or(u64::MAX),
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            deliveries: job.deliveries,
            losses: job.losses,
            step: job.step(),
        }
    }

    /// Returns the job's queue.
    pub const fn queue(&self) -> &QueueName {
        &self.queue
    }

    pub(super) fn lease(&self) -> Lease {
        let (queue, job) = (self.queue.clone(), self.job);
        Lease { queue, job, token: FencingToken(self.token) }
    }

    pub(super) const fn lease_for(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Returns the job as far as a verdict needs it.
    pub(super) fn to_job(&self) -> Job {
        let (queue, payload) = (self.queue.clone(), Bytes::new());
        let mut job = Job::new(self.job, queue, Timestamp::EPOCH, Timestamp::EPOCH, payload);
        (job.attempts, job.max_attempts) = (self.attempts, self.max_attempts);
        (job.deliveries, job.losses) = (self.deliveries, self.losses);
        if self.step > 0 {
            job.headers.insert(Headers::STEP, self.step.to_string());
        }
        job
    }

    /// Returns whether an earlier settlement of this lease led to what the store shows now.
    pub(super) fn was_settled(&self, outcome: &PullOutcome, view: Option<&JobView>) -> bool {
        let Some(view) = view.filter(|view| view.job.deliveries == self.deliveries) else {
            return false;
        };
        if let Some(ended) = &view.ended {
            return match outcome {
                PullOutcome::Returned(Outcome::Done) => ended.ending == Ending::Done,
                PullOutcome::Returned(Outcome::Skip(_)) => ended.ending == Ending::Skipped,
                _ => false,
            };
        }
        let waits = matches!(view.state, JobState::Scheduled | JobState::Ready);
        // An expired lease counts as a loss. All outcomes but a release set the losses to zero.
        let (attempts, has_no_loss) = (view.job.attempts, view.job.losses == 0);
        match outcome {
            PullOutcome::Failed(_) | PullOutcome::Returned(Outcome::RetryAfter(..)) => {
                let has_failed = attempts == self.attempts.saturating_add(1);
                has_failed && (waits && has_no_loss || view.death() == Some(DeadKind::Exhausted))
            }
            PullOutcome::Returned(Outcome::Dead(_)) => view.death() == Some(DeadKind::Rejected),
            PullOutcome::Returned(Outcome::Snooze(_) | Outcome::Throttle(_)) => {
                waits && has_no_loss && attempts == self.attempts
            }
            PullOutcome::Returned(Outcome::Again(..)) => waits && has_no_loss && attempts == 0,
            PullOutcome::Released => waits && view.job.losses == self.losses,
            PullOutcome::Returned(_) => false,
        }
    }
}
