//! Upper bounds of jobs and calls.

use std::time::Duration;

use super::job::NewJob;
use super::timestamp::Timestamp;
use crate::error::{Error, Result};

/// Largest payload, headers, delay and batch that are accepted.
///
/// They are checked before a call reaches the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum size of a payload in bytes; 1 MiB by default.
    pub payload: usize,
    /// Maximum size of all header names and values of one job in bytes; 16 KiB by default.
    pub headers: usize,
    /// Maximum distance of a due time from now; 100 years of 365 days by default.
    pub horizon: Duration,
    /// Maximum number of jobs in one schedule call; 100,000 by default.
    pub bulk: usize,
}

impl Limits {
    /// Checks a new job against these limits. Queue name and key were checked when they were
    /// created.
    ///
    /// # Errors
    /// `InvalidInput` if the payload or the headers are too large, a header name is invalid,
    /// `max_attempts` is 0, or the due time lies before 1970 or beyond the horizon.
    pub fn check(&self, job: &NewJob, now: Timestamp) -> Result<()> {
        if job.payload.len() > self.payload {
            return Err(Error::invalid(format!(
                "the payload for queue {} has {} bytes; at most {} are allowed",
                job.queue,
                job.payload.len(),
                self.payload
            ))
            .remedy(
                "store the data elsewhere and schedule a reference to it, or raise `limits.payload`",
            ));
        }
        if job.max_attempts == Some(0) {
            return Err(Error::invalid(format!(
                "max_attempts of a job for queue {} is 0",
                job.queue
            ))
            .remedy("1 means no retry"));
        }
        job.headers.validate(self.headers)?;
        job.due.validate(now, self.horizon)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload: 1024 * 1024,
            headers: 16 * 1024,
            horizon: Duration::from_secs(100 * 365 * 86_400),
            bulk: 100_000,
        }
    }
}
