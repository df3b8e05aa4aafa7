//! Settings for runners and `dq serve`, and job limits.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::duration;
use super::secret::Secret;
use super::setting_error::SettingError;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Limits, QueueName, format_exact_duration};

/// Runner settings: concurrency over all queues, grace period, sweep interval.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RunnerSettings {
    /// How many jobs one runner may run at once over all queues; at least 1. Default 256.
    pub concurrency: usize,
    /// Time for running handlers to finish during shutdown. Default 30 s.
    #[serde(with = "duration")]
    pub grace: Duration,
    /// Time after which a runner claims even without a wake-up hint; 100 ms to 1 min. Default 1 s.
    ///
    /// It bounds how late a job starts if its hint is lost.
    #[serde(with = "duration")]
    pub sweep: Duration,
}

impl Default for RunnerSettings {
    fn default() -> Self {
        Self { concurrency: 256, grace: Duration::from_secs(30), sweep: Duration::from_secs(1) }
    }
}

impl RunnerSettings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// `Config` with the field and its range.
    pub fn validate(&self) -> Result<()> {
        self.check_ranges()
            .map_err(|error| Error::new(ErrorKind::Config, format!("runner.{error}")))
    }

    /// Checks the ranges, for a caller that adds the settings' place to the error.
    pub(super) fn check_ranges(&self) -> Result<(), SettingError> {
        const SWEEP_RANGE: std::ops::RangeInclusive<Duration> =
            Duration::from_millis(100)..=Duration::from_secs(60);
        if self.concurrency == 0 {
            let problem = "is 0; it must be at least 1 (to stop a queue, pause it)";
            return Err(SettingError::new("concurrency", problem));
        }
        if !SWEEP_RANGE.contains(&self.sweep) {
            let sweep = format_exact_duration(self.sweep);
            return Err(SettingError::new("sweep", format!("is {sweep}; it must be 100ms to 1m")));
        }
        Ok(())
    }
}

/// Settings for `dq serve`. Applications ignore them, so both can share the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ServeSettings {
    /// Address to listen on. Default `127.0.0.1:7373`.
    pub address: Option<String>,
    /// Whether the server forwards queues with a `[queues.NAME.forward]`. Default `true`.
    pub forward: bool,
    /// Signs the leases of workers; by default, all tokens together do.
    ///
    /// Servers of one store need the same one: then a lease counts at each of them.
    pub secret: Option<Secret>,
    /// Accepted tokens by owner. Without any, the server generates a token and accepts connections
    /// only from this machine.
    pub tokens: BTreeMap<String, TokenSettings>,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self { address: None, forward: true, secret: None, tokens: BTreeMap::new() }
    }
}

/// A token that `dq serve` accepts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TokenSettings {
    /// The owner's role: `worker`, `viewer`, `reader`, `operator` or `admin`.
    pub role: String,
    /// The queues from which a worker may claim.
    #[serde(default)]
    pub queues: Vec<QueueName>,
    /// The token; at least 16 bytes.
    pub token: Secret,
}

/// Configurable [`Limits`] for payloads, headers and bulks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LimitSettings {
    /// Maximum payload size in bytes; `None` keeps the default, 1 MiB.
    pub payload: Option<usize>,
    /// Maximum total size of a job's header names and values in bytes; `None` keeps the default, 16
    /// KiB.
    pub headers: Option<usize>,
    /// Maximum jobs in one schedule call; `None` keeps the default, 100,000.
    pub bulk: Option<usize>,
}

impl From<LimitSettings> for Limits {
    fn from(settings: LimitSettings) -> Self {
        let mut limits = Self::default();
        limits.payload = settings.payload.unwrap_or(limits.payload);
        limits.headers = settings.headers.unwrap_or(limits.headers);
        limits.bulk = settings.bulk.unwrap_or(limits.bulk);
        limits
    }
}
