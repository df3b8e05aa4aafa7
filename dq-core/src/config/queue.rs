//! How one queue is served.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::Backoff;
use crate::model::QueueName;

/// Settings of one queue; what is `None` is left to the next layer below: built-in defaults, then
/// the handler's attribute, then `[defaults]` of the configuration, then `[queues.NAME]`, then
/// what the program says to the runner's builder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// Jobs of this queue that one runner runs at once; at least 1. Default 16.
    pub concurrency: Option<usize>,
    /// Attempts of a job before it is dead; 1 means no retry. Default 5.
    pub max_attempts: Option<u32>,
    /// Longest run of the handler; `"none"` for no limit. Default 15 min.
    #[serde(with = "duration::limit")]
    pub timeout: Option<Duration>,
    /// How long a lease lasts unless renewed, and so how long after a crash the job runs again;
    /// 1 s to 1 day. Default 30 s.
    #[serde(with = "duration::option")]
    pub lease: Option<Duration>,
    /// Delays between attempts.
    pub backoff: Option<Backoff>,
    /// Leases that may lapse in a row before the job is dead: it may be what crashes its runners.
    /// Default 10.
    pub max_losses: Option<u32>,
}

impl QueueSettings {
    /// These settings where they say something, `below` where they do not.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            concurrency: self.concurrency.or(below.concurrency),
            max_attempts: self.max_attempts.or(below.max_attempts),
            timeout: self.timeout.or(below.timeout),
            lease: self.lease.or(below.lease),
            backoff: self.backoff.or(below.backoff),
            max_losses: self.max_losses.or(below.max_losses),
        }
    }

    /// Complete and checked.
    ///
    /// # Errors
    /// `Config` naming the queue, the field and its range.
    pub fn policy(self, queue: &QueueName) -> Result<QueuePolicy> {
        let policy = QueuePolicy {
            concurrency: self.concurrency.unwrap_or(16),
            max_attempts: self.max_attempts.unwrap_or(5),
            timeout: self.timeout.unwrap_or(Duration::from_secs(15 * 60)),
            lease: self.lease.unwrap_or(Duration::from_secs(30)),
            backoff: self.backoff.unwrap_or_default(),
            max_losses: self.max_losses.unwrap_or(10),
        };
        policy.validate().map_err(|what| {
            Error::new(ErrorKind::Config, format!("queue {queue}: {what}"))
                .remedy("correct it in the configuration or in the handler's attribute")
        })?;
        Ok(policy)
    }
}

/// [`QueueSettings`] with nothing left open.
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
}

impl QueuePolicy {
    fn validate(&self) -> Result<(), String> {
        const LEASES: std::ops::RangeInclusive<Duration> =
            Duration::from_secs(1)..=Duration::from_secs(86_400);
        if self.concurrency == 0 {
            return Err("concurrency is 0; to stop a queue, pause it".to_owned());
        }
        if self.max_attempts == 0 {
            return Err("max_attempts is 0; 1 means no retry".to_owned());
        }
        if self.max_losses == 0 {
            return Err("max_losses is 0; it must be at least 1".to_owned());
        }
        if self.timeout.is_zero() {
            return Err("timeout is 0; \"none\" means no limit".to_owned());
        }
        if !LEASES.contains(&self.lease) {
            let lease = humantime::format_duration(self.lease);
            return Err(format!("lease is {lease}; it must be 1s to 1day"));
        }
        self.backoff.validate()
    }
}
