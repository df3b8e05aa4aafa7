//! Settings of one queue: concurrency, attempts, timeout, lease, backoff.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::backoff::BackoffSettings;
use super::duration;
use super::history;
use super::late::{LateAction, LatePolicy};
use super::setting_error::SettingError;
use super::typed::TypedSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Backoff, HistoryLimit, LatenessObjective, QueueName};

/// Settings of one queue, each optional.
///
/// Layers, lowest first: built-in defaults, the handler's attribute, `[defaults]` of the
/// configuration, `[queues.NAME]`, the runner's builder. A field that is `None` in one layer has
/// the value of the next layer below.
///
/// ```
/// use dq_core::DurationExt;
/// use dq_core::config::QueueSettings;
///
/// let settings = QueueSettings::new().concurrency(4).lease(1.minutes());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct QueueSettings {
    /// Maximum number of jobs of this queue that one runner runs concurrently; at least 1. Default
    /// 16.
    ///
    /// It also bounds the throughput of jobs that take longer than 5 ms: `concurrency` divided by the
    /// duration of one run plus the store's latency for a claim and a settlement. Of shorter jobs a
    /// runner claims up to 100 at once.
    pub concurrency: Option<usize>,
    /// Maximum number of attempts of a job; 1 means no retry. Default 5, and 15 for a queue with a
    /// forward.
    pub max_attempts: Option<u32>,
    /// Maximum duration of one run of the handler with its middleware; `"none"` for no limit.
    /// Default 15 min.
    ///
    /// A handler that takes longer is dropped, and the attempt counts as failed. A `blocking`
    /// handler cannot be dropped: its cancellation signal fires, and its return value counts.
    #[serde(with = "duration::limit")]
    pub timeout: Option<Duration>,
    /// How long a lease lasts unless renewed, which is how long after a crash the job runs again; 1
    /// s to 1 day. Default 30 s.
    #[serde(with = "duration::option")]
    pub lease: Option<Duration>,
    /// Delays between attempts.
    pub backoff: BackoffSettings,
    /// Number of consecutive leases that may expire before the job is dead, since it may be the
    /// cause of the crashes; at least 1. Default 10.
    pub max_losses: Option<u32>,
    /// What happens to a job that starts late. Default: it runs.
    pub late: Option<LatePolicy>,
    /// The share of the jobs that should start within a time after they are due, such as
    /// `"99% < 100ms"`. Default: none. Nothing about a job changes if it is missed; runners and
    /// operators are notified.
    ///
    /// It belongs to the configuration or to a handler: a runner refuses one of its own, which
    /// programs without a runner could not know.
    pub lateness: Option<LatenessObjective>,
    /// How much later than asked a job may be due, so that many jobs of one moment do not start at
    /// once; see [`Schedule::spread`](crate::Schedule::spread). Default: not at all. Jobs without a
    /// due time are not spread.
    ///
    /// A setting of the producer, read from the configuration. Handlers' attributes and runners
    /// cannot set it.
    #[serde(with = "duration::option")]
    pub spread: Option<Duration>,
    /// How many ended jobs the store remembers; `0` for none. Default none, except in RabbitMQ, where
    /// a history costs next to nothing: 1,000, for a day.
    ///
    /// A setting of the store: it is read from the configuration when the store is opened. Handlers'
    /// attributes and runners cannot set it.
    #[serde(with = "history")]
    pub history: Option<HistoryLimit>,
    /// The built-in handler of the queue. Only a configuration can set it; it is not serialized, since
    /// it may hold secrets.
    #[serde(skip_serializing)]
    pub(crate) forward: Option<TypedSettings>,
}

impl QueueSettings {
    /// Settings with every field unset.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`Self::concurrency`].
    #[must_use]
    pub const fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Sets [`Self::max_attempts`].
    #[must_use]
    pub const fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(max_attempts);
        self
    }

    /// Sets [`Self::timeout`]; [`Duration::MAX`] for no limit.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets [`Self::lease`].
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets [`Self::backoff`], partly by [`BackoffSettings`] or completely by a [`Backoff`].
    #[must_use]
    pub fn backoff(mut self, backoff: impl Into<BackoffSettings>) -> Self {
        self.backoff = backoff.into();
        self
    }

    /// Sets [`Self::max_losses`].
    #[must_use]
    pub const fn max_losses(mut self, max_losses: u32) -> Self {
        self.max_losses = Some(max_losses);
        self
    }

    /// Sets [`Self::late`].
    #[must_use]
    pub fn late(mut self, late: LatePolicy) -> Self {
        self.late = Some(late);
        self
    }

    /// Sets [`Self::lateness`].
    #[must_use]
    pub const fn lateness(mut self, objective: LatenessObjective) -> Self {
        self.lateness = Some(objective);
        self
    }

    /// Sets [`Self::spread`].
    #[must_use]
    pub const fn spread(mut self, window: Duration) -> Self {
        self.spread = Some(window);
        self
    }

    /// Sets [`Self::history`].
    #[must_use]
    pub const fn history(mut self, limit: HistoryLimit) -> Self {
        self.history = Some(limit);
        self
    }

    /// These settings, with unset fields taken from `below`.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            concurrency: self.concurrency.or(below.concurrency),
            max_attempts: self.max_attempts.or(below.max_attempts),
            timeout: self.timeout.or(below.timeout),
            lease: self.lease.or(below.lease),
            backoff: self.backoff.over(below.backoff),
            max_losses: self.max_losses.or(below.max_losses),
            late: self.late.or(below.late),
            lateness: self.lateness.or(below.lateness),
            spread: self.spread.or(below.spread),
            history: self.history.or(below.history),
            forward: self.forward.or(below.forward),
        }
    }

    /// These settings with defaults for unset fields, validated.
    ///
    /// # Errors
    /// `Config` naming the queue, the field and its range.
    pub fn policy(self, queue: &QueueName) -> Result<QueuePolicy> {
        let policy = QueuePolicy {
            concurrency: self.concurrency.unwrap_or(16),
            max_attempts: self.max_attempts.unwrap_or(5),
            timeout: self.timeout.unwrap_or(Duration::from_secs(15 * 60)),
            lease: self.lease.unwrap_or(Duration::from_secs(30)),
            backoff: self.backoff.complete(),
            max_losses: self.max_losses.unwrap_or(10),
            late: self.late.clone(),
            lateness: self.lateness,
        };
        // A backoff that is valid by itself may be invalid together with a default.
        let complete = Self { backoff: policy.backoff.into(), ..self };
        complete.validate().map_err(|error| {
            Error::new(ErrorKind::Config, format!("queue {queue}: {error}"))
                .remedy("correct it in the configuration or in the handler's attribute")
        })?;
        if let Some(LatePolicy { then: LateAction::Queue(target), .. }) = &policy.late
            && target == queue
        {
            let message = format!("queue {queue}: late.then moves late jobs to the same queue");
            return Err(Error::new(ErrorKind::Config, message)
                .remedy("name another queue, or write \"run\", \"skip\" or \"dead\""));
        }
        Ok(policy)
    }

    /// Checks the fields that are set.
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        const LEASE_RANGE: std::ops::RangeInclusive<Duration> =
            Duration::from_secs(1)..=Duration::from_secs(86_400);
        if self.concurrency == Some(0) {
            let problem = "is 0; it must be at least 1 (to stop a queue, pause it)";
            return Err(SettingError::new("concurrency", problem));
        }
        if self.max_attempts == Some(0) {
            let problem = "is 0; it must be at least 1, which means no retry";
            return Err(SettingError::new("max_attempts", problem));
        }
        if self.max_losses == Some(0) {
            return Err(SettingError::new("max_losses", "is 0; it must be at least 1"));
        }
        if self.timeout == Some(Duration::ZERO) {
            let problem = "is 0; it must be longer, or \"none\" for no limit";
            return Err(SettingError::new("timeout", problem));
        }
        if let Some(lease) = self.lease.filter(|lease| !LEASE_RANGE.contains(lease)) {
            let lease = humantime::format_duration(lease);
            return Err(SettingError::new("lease", format!("is {lease}; it must be 1s to 1day")));
        }
        if let Some(late) = &self.late {
            late.validate()?;
        }
        self.backoff.validate()
    }
}

/// [`QueueSettings`] with a value for every field.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuePolicy {
    /// See [`QueueSettings::concurrency`].
    pub concurrency: usize,
    /// See [`QueueSettings::max_attempts`].
    pub max_attempts: u32,
    /// See [`QueueSettings::timeout`]; [`Duration::MAX`] for no limit.
    pub timeout: Duration,
    /// See [`QueueSettings::lease`].
    pub lease: Duration,
    /// See [`QueueSettings::backoff`].
    pub backoff: Backoff,
    /// See [`QueueSettings::max_losses`].
    pub max_losses: u32,
    /// See [`QueueSettings::late`].
    pub late: Option<LatePolicy>,
    /// See [`QueueSettings::lateness`].
    pub lateness: Option<LatenessObjective>,
}
