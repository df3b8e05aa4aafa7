//! Settings of runners, and limits of jobs.

use std::time::Duration;

use serde::Deserialize;

use super::duration;
use crate::error::{Error, ErrorKind, Result};
use crate::model::Limits;

/// Settings of a runner: concurrency over all queues, grace period, sweep interval.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RunnerSettings {
    /// Jobs that one runner runs concurrently over all queues; at least 1. Default 256.
    pub concurrency: usize,
    /// How long running handlers may take to finish during shutdown. Default 30 s.
    #[serde(with = "duration")]
    pub grace: Duration,
    /// Longest time between two claims, which bounds the lateness if every wake-up hint is lost;
    /// 100 ms to 1 min. Default 1 s.
    #[serde(with = "duration")]
    pub sweep: Duration,
}

impl Default for RunnerSettings {
    fn default() -> Self {
        Self { concurrency: 256, grace: Duration::from_secs(30), sweep: Duration::from_secs(1) }
    }
}

impl RunnerSettings {
    /// Checks the ranges of all fields.
    ///
    /// # Errors
    /// `Config` naming the field and its range.
    pub fn validate(&self) -> Result<()> {
        self.check_ranges().map_err(|what| Error::new(ErrorKind::Config, format!("runner.{what}")))
    }

    /// Checks the ranges; the error begins with the name of the field.
    pub(super) fn check_ranges(&self) -> Result<(), String> {
        const SWEEPS: std::ops::RangeInclusive<Duration> =
            Duration::from_millis(100)..=Duration::from_secs(60);
        if self.concurrency == 0 {
            return Err("concurrency is 0; to stop a queue, pause it".to_owned());
        }
        if !SWEEPS.contains(&self.sweep) {
            let sweep = humantime::format_duration(self.sweep);
            return Err(format!("sweep is {sweep}; it must be 100ms to 1m"));
        }
        Ok(())
    }
}

/// The configurable [`Limits`] of payloads, headers and bulks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LimitSettings {
    /// See [`Limits::payload`], in bytes.
    pub payload: Option<usize>,
    /// See [`Limits::headers`], in bytes.
    pub headers: Option<usize>,
    /// See [`Limits::bulk`], in jobs.
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
