//! Settings for one queue: concurrency, attempts, timeout, lease, backoff.

use std::time::Duration;

use serde::Deserialize;

use super::backoff::BackoffSettings;
use super::duration;
use super::history;
use super::late::{LateAction, LatePolicy};
use super::queue_limit::{self, QueueLimit};
use super::setting_error::SettingError;
use super::typed::TypedSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Backoff, Flow, HistoryLimit, LatenessObjective, Priority, QueueName, Rate,
    format_exact_duration,
};

/// Settings for one queue, each optional.
///
/// Layers, lowest first: built-in defaults, the handler's attribute, `[defaults]` in the
/// configuration, `[queues.NAME]`, the runner's builder. `None` takes the value from the layer
/// below. A limit of a lower layer is removed by `"none"` in a configuration, by
/// [`QueueLimit::Unlimited`].
///
/// ```
/// use dq_core::DurationExt;
/// use dq_core::config::QueueSettings;
///
/// let settings = QueueSettings::new().concurrency(4).lease(1.minutes());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[must_use]
#[non_exhaustive]
pub struct QueueSettings {
    /// How many jobs of this queue one runner may run at once; at least 1. Default 16.
    ///
    /// For jobs longer than 5 ms it also bounds the throughput: `concurrency` divided by the sum of
    /// run time and the store's latency for claim and settlement.
    pub concurrency: Option<usize>,
    /// Which queues of a runner start jobs first while its slots are scarce: `"high"`, `"normal"`
    /// or `"low"`. Default `"normal"`.
    ///
    /// The order between levels is strict: a free slot goes to a queue of a lower level only if no
    /// job of a higher one is due. Queues of one level take turns, and each starts its jobs by due
    /// time. A backlog in a higher level can thus starve a lower one; give the lower queue a
    /// `reserve`. A running job is never interrupted. While slots are scarce, a runner with
    /// different levels or a reserve claims jobs for free slots only, so it runs fewer jobs under 5
    /// ms each second.
    pub priority: Option<Priority>,
    /// How many of a runner's slots only this queue may use, up to `concurrency`. Default: none.
    /// `"none"` and 0 remove a lower layer's.
    ///
    /// The other slots are shared by all queues. The queue uses its reserve first, then shared
    /// slots, up to its `concurrency`. A reserved slot stays idle while the queue has no due job. A
    /// runner starts only if the reserves of its queues fit into its concurrency.
    #[serde(deserialize_with = "queue_limit::number")]
    pub reserve: Option<QueueLimit<usize>>,
    /// How many jobs of this queue run at once, in all processes together; at least 1. Default: no
    /// limit.
    ///
    /// The store counts leases: after a crash, a job's place is free when its lease ends. The
    /// runner that has started last decides, unless an operator has set other limits.
    #[serde(deserialize_with = "queue_limit::number")]
    pub max_running: Option<QueueLimit<u32>>,
    /// How many jobs of each [group](crate::Schedule::group) run at once, in all processes
    /// together; at least 1. Default: no limit.
    ///
    /// Jobs of a full group wait, and later jobs of others start before them.
    #[serde(deserialize_with = "queue_limit::number")]
    pub group_max_running: Option<QueueLimit<u32>>,
    /// How fast jobs of this queue start, in all processes together, such as `"100/1m"`. Default:
    /// no limit.
    ///
    /// It counts claims. Like `max_running`, it holds for all runners.
    #[serde(deserialize_with = "queue_limit::text")]
    pub rate: Option<QueueLimit<Rate>>,
    /// Maximum attempts per job; 1 means no retry. Default 5, or 15 for a queue with a forward.
    pub max_attempts: Option<u32>,
    /// Maximum duration of one run, middleware included; `"none"` (in code
    /// [`Duration::MAX`]) for no limit. Default 15 min.
    ///
    /// The runner drops a slower handler, and the attempt counts as failed. It cannot drop a
    /// `blocking` handler: the cancellation signal fires, and the return value counts.
    #[serde(deserialize_with = "duration::limit")]
    pub timeout: Option<Duration>,
    /// Lease time without renewal, and so the delay before a job runs again after a crash; 1 s to 1
    /// day. Default 30 s.
    #[serde(with = "duration::option")]
    pub lease: Option<Duration>,
    /// Delays between attempts.
    pub backoff: BackoffSettings,
    /// How many consecutive leases may expire before the job, perhaps the cause of crashes, is
    /// dead; at least 1. Default 10.
    pub max_losses: Option<u32>,
    /// The policy for jobs that start late. Default: they run.
    pub late: Option<LatePolicy>,
    /// A lateness objective, such as `"99% < 100ms"`. Default: none.
    ///
    /// The given share of jobs should start within this time after their due time. A miss changes
    /// no job, but notifies runners and operators.
    ///
    /// Set it in the configuration or on a handler; a runner rejects it.
    pub lateness: Option<LatenessObjective>,
    /// How much a job may be delayed, so that many jobs due together do not start at once; see
    /// [`Schedule::spread`](crate::Schedule::spread). Default: not at all.
    ///
    /// Jobs without a due time are not spread. Set it in the configuration, where the producer
    /// reads it.
    #[serde(with = "duration::option")]
    pub spread: Option<Duration>,
    /// How many ended jobs the store remembers; `0` for none.
    ///
    /// Default none; in RabbitMQ, 1,000 for a day. Set it in the configuration, which is read when
    /// the store opens.
    #[serde(deserialize_with = "history::deserialize")]
    pub history: Option<HistoryLimit>,
    /// The queue's built-in handler, set only by a configuration.
    pub(crate) forward: Option<TypedSettings>,
}

impl QueueSettings {
    /// Settings with every field unset.
    pub fn new() -> Self {
        Self::default()
    }

    optional_setters!(
        concurrency: usize,
        priority: Priority,
        max_attempts: u32,
        timeout: Duration,
        lease: Duration,
        max_losses: u32,
        late: LatePolicy,
        lateness: LatenessObjective,
        spread: Duration,
        history: HistoryLimit,
    );

    /// Sets [`Self::reserve`].
    pub fn reserve(mut self, reserve: usize) -> Self {
        self.reserve = Some(reserve.into());
        self
    }

    /// Sets [`Self::max_running`].
    pub fn max_running(mut self, max: u32) -> Self {
        self.max_running = Some(max.into());
        self
    }

    /// Sets [`Self::group_max_running`].
    pub fn group_max_running(mut self, max: u32) -> Self {
        self.group_max_running = Some(max.into());
        self
    }

    /// Sets [`Self::rate`].
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate.into());
        self
    }

    /// Sets [`Self::backoff`], partly by [`BackoffSettings`] or completely by a [`Backoff`].
    pub fn backoff(mut self, backoff: impl Into<BackoffSettings>) -> Self {
        self.backoff = backoff.into();
        self
    }

    /// Fills unset fields from `below`.
    pub fn over(self, below: Self) -> Self {
        Self {
            concurrency: self.concurrency.or(below.concurrency),
            priority: self.priority.or(below.priority),
            reserve: self.reserve.or(below.reserve),
            max_running: self.max_running.or(below.max_running),
            group_max_running: self.group_max_running.or(below.group_max_running),
            rate: self.rate.or(below.rate),
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

    /// Fills unset fields with defaults and validates.
    ///
    /// # Errors
    /// `Config` with the queue, the field and its range.
    pub fn policy(self, queue: &QueueName) -> Result<QueuePolicy> {
        let policy = QueuePolicy {
            concurrency: self.concurrency.unwrap_or(16),
            priority: self.priority.unwrap_or_default(),
            reserve: self.reserve.and_then(QueueLimit::get).unwrap_or(0),
            max_attempts: self.max_attempts.unwrap_or(5),
            timeout: self.timeout.unwrap_or(Duration::from_secs(15 * 60)),
            lease: self.lease.unwrap_or(Duration::from_secs(30)),
            backoff: self.backoff.complete(),
            max_losses: self.max_losses.unwrap_or(10),
            late: self.late.clone(),
            lateness: self.lateness,
            flow: Flow {
                max_running: self.max_running.and_then(QueueLimit::get),
                group_max_running: self.group_max_running.and_then(QueueLimit::get),
                rate: self.rate.and_then(QueueLimit::get),
            },
        };
        // A backoff or reserve valid by itself may be invalid with a default.
        let (concurrency, backoff) = (Some(policy.concurrency), policy.backoff.into());
        let complete = Self { concurrency, backoff, ..self };
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

    pub(super) fn validate(&self) -> Result<(), SettingError> {
        const LEASE_RANGE: std::ops::RangeInclusive<Duration> =
            Duration::from_secs(1)..=Duration::from_secs(86_400);
        if self.concurrency == Some(0) {
            let problem = "is 0; it must be at least 1 (to stop a queue, pause it)";
            return Err(SettingError::new("concurrency", problem));
        }
        if let (Some(QueueLimit::At(reserve)), Some(concurrency)) = (self.reserve, self.concurrency)
            && reserve > concurrency
        {
            let problem = format!(
                "is {reserve}, but the queue's concurrency is {concurrency}; reserve fewer slots or raise \
                 the concurrency"
            );
            return Err(SettingError::new("reserve", problem));
        }
        for (name, max) in
            [("max_running", self.max_running), ("group_max_running", self.group_max_running)]
        {
            if max == Some(QueueLimit::At(0)) {
                let problem = "is 0; it must be at least 1 (to stop a queue, pause it)";
                return Err(SettingError::new(name, problem));
            }
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
            let lease = format_exact_duration(lease);
            return Err(SettingError::new("lease", format!("is {lease}; it must be 1s to 1d")));
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
    /// See [`QueueSettings::priority`].
    pub priority: Priority,
    /// See [`QueueSettings::reserve`]; 0 for none.
    pub reserve: usize,
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
    /// See [`QueueSettings::max_running`] and [`QueueSettings::rate`].
    pub flow: Flow,
}
