//! Workers in any language: they claim, renew and settle jobs.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use dq_core::{
    Due, Error, Headers, JobId, Outcome, PullLease, PullOutcome, PullRenewed, PullRequest,
    PullSettled, PulledJob, QueueName, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::actor::Role;
use crate::error::{OpsError, Result};
use crate::input::{parse_due, parse_duration};
use crate::json;
use crate::openapi;
use crate::ops::Session;
use crate::raw_json::RawJson;
use crate::text;

/// The most leases in a call.
const MAX_LEASES: usize = 1_000;

/// What a worker asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// How many jobs of each queue, at least 1; up to 1,000 queues.
    #[serde(deserialize_with = "json::whole_numbers")]
    #[schema(value_type = openapi::WantedQueues, required = true)]
    pub queues: BTreeMap<String, u64>,
    /// How many jobs in all, at least 1; by default, the sum of the queues. An answer has at most
    /// 100.
    #[serde(deserialize_with = "json::whole")]
    #[schema(minimum = 1)]
    pub max: Option<u64>,
    /// How long to wait until a job is due, up to a minute; `0s`, the default, does not wait.
    #[schema(value_type = Option<openapi::Duration>)]
    pub wait: Option<String>,
    /// For how long the jobs are leased, from `1s` to `1d`; by default, the queue's setting. Each
    /// renewal is for the same time.
    #[schema(value_type = Option<openapi::PositiveDuration>)]
    pub lease: Option<String>,
    /// The worker's name, for operators: 1 to 128 bytes without control characters; by default, the
    /// token's.
    #[schema(value_type = Option<openapi::WorkerName>)]
    pub worker: Option<String>,
}

/// The jobs that a worker has claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ClaimedJobs {
    /// The jobs. They are the worker's until their leases end.
    pub jobs: Vec<ClaimedJob>,
    /// The time by the store's clock.
    #[serde(with = "text")]
    pub now: Timestamp,
}

/// A job and its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ClaimedJob {
    /// The queue.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// The job id.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The payload, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<RawJson>,
    /// Any other payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Base64>)]
    pub payload_base64: Option<String>,
    /// The payload's MIME type.
    pub content_type: String,
    /// The other headers.
    pub headers: BTreeMap<String, String>,
    /// The due time.
    #[serde(with = "text")]
    pub due: Timestamp,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// How many attempts the job has.
    pub max_attempts: u32,
    /// How often the job was claimed, with this time.
    pub deliveries: u32,
    /// The escalation step, from 0.
    pub step: u32,
    /// A number that is larger with each claim of the job. A system that you write to can refuse
    /// smaller ones.
    pub token: String,
    /// The lease, for `:renew` and `:settle`.
    pub lease: String,
    /// When the lease ends unless it is renewed, by the store's clock.
    #[serde(with = "text")]
    pub lease_ends: Timestamp,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkOutcome {
    /// The job is done.
    Done,
    /// The attempt failed, with `error`: the job is retried, or dead after its last attempt. A
    /// `delay` comes before the queue's backoff.
    Failed,
    /// There was nothing to do, for this `reason`.
    Skipped,
    /// The job runs again after `delay`. Uses no attempt.
    Snoozed,
    /// As snoozed, and no job of the queue starts before.
    Throttled,
    /// The job is dead, for this `reason`, without a retry.
    Dead,
    /// The job runs again after `delay` with another `payload`. Attempts start again.
    Again,
    /// The worker stopped before the end: the job is due again at once. Uses no attempt.
    Released,
}

/// A job's result.
#[derive(Debug, Clone, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct JobResult {
    /// The lease, as the claim returned it.
    pub lease: String,
    /// How the run ended.
    pub outcome: WorkOutcome,
    /// For `failed`.
    pub error: Option<String>,
    /// For `skipped` and `dead`.
    pub reason: Option<String>,
    /// For `snoozed`, `throttled` and `again`: a delay or a time. For `failed`: a delay.
    pub delay: Option<String>,
    /// For `again`: the new payload, as JSON.
    #[serde(default, deserialize_with = "json::present")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// For `again`: a new payload that is not JSON, in Base64.
    pub payload_base64: Option<String>,
}

/// The result of a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RenewalResult {
    /// The lease holds.
    Renewed {
        /// When it ends, by the store's clock.
        #[serde(with = "text")]
        until: Timestamp,
    },
    /// The lease is lost: stop the run.
    Lost {
        /// `expired` if the job waits or runs elsewhere; `done`, `skipped`, `cancelled`,
        /// `replaced`, `removed` or `dead` if that has become of it; `unknown` if the store does
        /// not know.
        why: String,
    },
    /// The lease is invalid.
    Refused {
        /// What is wrong.
        error: WorkError,
    },
}

/// The result of a settlement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SettlementResult {
    /// The outcome counts, by this request or an earlier one.
    Settled,
    /// The lease was lost, and nothing changed.
    Lost {
        /// As for a renewal.
        why: String,
    },
    /// The result is invalid. The lease holds: settle it otherwise.
    Refused {
        /// What is wrong.
        error: WorkError,
    },
}

/// The error of one item of a request, with the fields of a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct WorkError {
    /// The kind of error.
    pub title: String,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl From<OpsError> for WorkError {
    fn from(error: OpsError) -> Self {
        Self { title: error.kind().to_owned(), detail: error.message(), remedy: error.remedy() }
    }
}

impl JobResult {
    /// Checks that the fields fit the outcome.
    fn to_outcome(&self) -> Result<PullOutcome> {
        let allowed: &[&str] = match self.outcome {
            WorkOutcome::Done | WorkOutcome::Released => &[],
            WorkOutcome::Failed => &["error", "delay"],
            WorkOutcome::Skipped | WorkOutcome::Dead => &["reason"],
            WorkOutcome::Snoozed | WorkOutcome::Throttled => &["delay"],
            WorkOutcome::Again => &["delay", "payload", "payload_base64"],
        };
        let given = [
            ("error", self.error.is_some()),
            ("reason", self.reason.is_some()),
            ("delay", self.delay.is_some()),
            ("payload", self.payload.is_some()),
            ("payload_base64", self.payload_base64.is_some()),
        ];
        let stray = given.iter().find(|(field, is_given)| *is_given && !allowed.contains(field));
        if let Some((field, _)) = stray {
            return Err(Error::invalid(format!("`{field}` does not belong to this outcome"))
                .remedy("leave it out, or give another outcome")
                .into());
        }
        let reason = || self.reason.clone().unwrap_or_else(|| "the worker gave no reason".into());
        let error = || self.error.clone().unwrap_or_else(|| "the worker gave no error".into());
        Ok(PullOutcome::Returned(match self.outcome {
            WorkOutcome::Done => Outcome::Done,
            WorkOutcome::Released => return Ok(PullOutcome::Released),
            WorkOutcome::Failed => match &self.delay {
                Some(delay) => Outcome::retry_after(parse_duration(delay)?, error()),
                None => return Ok(PullOutcome::Failed(error())),
            },
            WorkOutcome::Skipped => Outcome::skip(reason()),
            WorkOutcome::Dead => Outcome::dead(reason()),
            WorkOutcome::Snoozed => Outcome::Snooze(self.due()?),
            WorkOutcome::Throttled => Outcome::Throttle(self.due()?),
            WorkOutcome::Again => Outcome::Again(self.due()?, self.payload()?),
        }))
    }

    fn due(&self) -> Result<Due> {
        let delay = self.delay.as_deref().ok_or_else(|| {
            Error::invalid("`delay` is missing").remedy("give a delay such as 15m, or a time")
        })?;
        Ok(parse_due(delay)?)
    }

    fn payload(&self) -> Result<Bytes> {
        match (&self.payload, &self.payload_base64) {
            (Some(json), None) => Ok(Bytes::copy_from_slice(json.get().as_bytes())),
            (None, Some(encoded)) => Ok(STANDARD
                .decode(encoded)
                .map_err(|error| {
                    Error::invalid(format!("`payload_base64` is not Base64: {error}"))
                        .remedy("encode it by the standard alphabet, with padding")
                })?
                .into()),
            _ => Err(Error::invalid("the result has neither `payload` nor `payload_base64` alone")
                .remedy("`again` needs one of them; `snoozed` keeps the payload")
                .into()),
        }
    }
}

/// Workers may call these for their own queues, operators for all; others get `Forbidden`. They are
/// not in the audit: the jobs' history has them.
impl Session {
    /// Claims jobs, or waits for the first. Drop the future if the worker goes away: its jobs are
    /// handed back.
    ///
    /// # Errors
    /// `Forbidden`, `ForeignQueue`, `InvalidInput`; `Closed` after [`Ops::stop_work`];
    /// `Unavailable`.
    ///
    /// [`Ops::stop_work`]: crate::Ops::stop_work
    pub async fn claim(&self, request: &ClaimRequest) -> Result<ClaimedJobs> {
        self.require_worker()?;
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut queues = Vec::new();
        for (name, jobs) in &request.queues {
            let queue = QueueName::new(name)?;
            if !self.actor.may_work_on(&queue) {
                return Err(OpsError::ForeignQueue { queue });
            }
            queues.push((queue, number(*jobs)));
        }
        let worker = request.worker.as_deref().unwrap_or(self.actor.name());
        let mut claim = PullRequest::new(worker, queues);
        claim.max = request.max.map_or(usize::MAX, number);
        claim.wait = request.wait.as_deref().map(parse_duration).transpose()?.unwrap_or_default();
        claim.lease = request.lease.as_deref().map(parse_duration).transpose()?;
        let server = self.ops.pull();
        // Nothing is awaited from here on, so an answer always has what was accepted.
        let jobs = server.claim(&claim).await?.accept();
        let now = server.now();
        Ok(ClaimedJobs { jobs: jobs.into_iter().map(|job| self.claimed(job)).collect(), now })
    }

    fn claimed(&self, job: PulledJob) -> ClaimedJob {
        let PulledJob { leased, lease, max_attempts, .. } = job;
        let (job, token, lease_ends) = (leased.job, leased.token, leased.leased_until);
        let mut headers: BTreeMap<String, String> =
            job.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let content_type = headers.remove(Headers::CONTENT_TYPE);
        let content_type = content_type.unwrap_or_else(|| "application/json".to_owned());
        let payload =
            Headers::is_json(&content_type).then(|| RawJson::parse(&job.payload)).flatten();
        let payload_base64 = payload.is_none().then(|| STANDARD.encode(&job.payload));
        ClaimedJob {
            id: job.id,
            key: job.key.as_ref().map(|key| key.as_str().to_owned()),
            payload,
            payload_base64,
            content_type,
            headers,
            due: job.due,
            attempt: job.attempts.saturating_add(1),
            max_attempts,
            deliveries: job.deliveries,
            step: job.step(),
            token: token.to_string(),
            lease: self.ops.work.sign(self.actor.name(), &lease),
            lease_ends,
            queue: job.queue,
        }
    }

    /// Renews leases. An invalid one has a result of its own.
    ///
    /// # Errors
    /// `Forbidden`; `InvalidInput` for more than 1,000 leases; `Unavailable`, `OutcomeUnknown`:
    /// call again.
    pub async fn renew(&self, leases: &[String]) -> Result<Vec<RenewalResult>> {
        self.require_leases(leases.len())?;
        let read = leases.iter().map(|lease| self.lease(lease).map_err(WorkError::from));
        let (valid, refused) = split(read);
        let renewed =
            self.ops.pull().renew(&valid).await?.into_iter().map(|renewed| match renewed {
                PullRenewed::Until(until) => RenewalResult::Renewed { until },
                PullRenewed::Lost(loss) => RenewalResult::Lost { why: loss.as_str().to_owned() },
                _ => RenewalResult::Lost { why: "unknown".to_owned() },
            });
        Ok(merge(renewed, refused, |error| RenewalResult::Refused { error }))
    }

    /// Settles leases by the outcomes of their runs. An invalid one has a result of its own.
    ///
    /// # Errors
    /// As [`renew`](Self::renew).
    pub async fn settle<'a>(
        &self,
        results: impl ExactSizeIterator<Item = &'a JobResult>,
    ) -> Result<Vec<SettlementResult>> {
        self.require_leases(results.len())?;
        let checked = |result: &JobResult| Ok((self.lease(&result.lease)?, result.to_outcome()?));
        let (valid, refused) =
            split(results.map(|result| checked(result).map_err(|error: OpsError| error.into())));
        let settled =
            self.ops.pull().settle(&valid).await?.into_iter().map(|settled| match settled {
                Ok(PullSettled::Settled) => SettlementResult::Settled,
                Ok(PullSettled::Lost(loss)) => {
                    SettlementResult::Lost { why: loss.as_str().to_owned() }
                }
                Ok(_) => SettlementResult::Lost { why: "unknown".to_owned() },
                Err(error) => SettlementResult::Refused { error: OpsError::from(error).into() },
            });
        Ok(merge(settled, refused, |error| SettlementResult::Refused { error }))
    }

    fn lease(&self, text: &str) -> Result<PullLease> {
        let lease = self.ops.work.read(self.actor.name(), text)?;
        match self.actor.may_work_on(lease.queue()) {
            true => Ok(lease),
            false => Err(OpsError::ForeignQueue { queue: lease.queue().clone() }),
        }
    }

    fn require_worker(&self) -> Result<()> {
        match self.actor.role() {
            Role::Viewer | Role::Reader => {
                Err(OpsError::Forbidden { needs: Role::Worker, has: self.actor.role() })
            }
            _ => Ok(()),
        }
    }

    fn require_leases(&self, number: usize) -> Result<()> {
        self.require_worker()?;
        if (1..=MAX_LEASES).contains(&number) {
            return Ok(());
        }
        Err(Error::invalid(format!("the request has {number} leases"))
            .remedy(format!("send 1 to {MAX_LEASES} in one request"))
            .into())
    }

    /// Returns the time by the store's clock; before the first claim is answered, by this
    /// process's.
    #[must_use]
    pub fn work_time(&self) -> Timestamp {
        self.ops.pull().now()
    }
}

/// Splits items into valid ones and, with their places, the errors of the others.
fn split<T>(
    items: impl Iterator<Item = Result<T, WorkError>>,
) -> (Vec<T>, Vec<(usize, WorkError)>) {
    let (mut valid, mut refused) = (Vec::new(), Vec::new());
    for (place, item) in items.enumerate() {
        match item {
            Ok(item) => valid.push(item),
            Err(error) => refused.push((place, error)),
        }
    }
    (valid, refused)
}

/// Puts refused items back in their places.
fn merge<T>(
    valid: impl Iterator<Item = T>,
    refused: Vec<(usize, WorkError)>,
    refuse: impl Fn(WorkError) -> T,
) -> Vec<T> {
    let mut all: Vec<T> = valid.collect();
    for (place, error) in refused {
        all.insert(place, refuse(error));
    }
    all
}
