//! Upper bounds for jobs and calls.

use std::time::Duration;

use super::duration::format_exact_duration;
use super::job::NewJob;
use super::queue::QueueName;
use super::timestamp::Timestamp;
use crate::error::{Error, Result};

/// Limits for payload, headers, due time and batch size.
///
/// They are checked before a call reaches the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum payload size in bytes; 1 MiB by default.
    pub payload: usize,
    /// Maximum total size of a job's header names and values in bytes; 16 KiB by default.
    pub headers: usize,
    /// Maximum time from now to a due time; 100 years of 365 days by default.
    pub horizon: Duration,
    /// Maximum jobs in one schedule call; 100,000 by default.
    pub bulk: usize,
}

impl Limits {
    /// Checks a new job; queue name and key were checked at creation.
    ///
    /// # Errors
    /// `InvalidInput` if the payload or the headers are too large, a header name is invalid,
    /// `max_attempts` is 0, [`Due::validate`](super::Due::validate) refuses the due time, or
    /// `remember` exceeds the horizon.
    pub fn check(&self, job: &NewJob, now: Timestamp) -> Result<()> {
        self.check_payload(&job.queue, &job.payload)?;
        if job.max_attempts == Some(0) {
            return Err(Error::invalid(format!(
                "max_attempts of a job for queue {} is 0",
                job.queue
            ))
            .remedy("1 means no retry"));
        }
        if job.remember > self.horizon {
            return Err(Error::invalid(format!(
                "a job for queue {} is to be remembered for {}; at most {} is allowed",
                job.queue,
                format_exact_duration(job.remember),
                format_exact_duration(self.horizon)
            ))
            .remedy("remember it for a shorter time, or raise `limits.horizon`"));
        }
        job.headers.validate(self.headers)?;
        job.due.validate(now, self.horizon)
    }

    /// Checks the payload size.
    pub(crate) fn check_payload(&self, queue: &QueueName, payload: &[u8]) -> Result<()> {
        if payload.len() <= self.payload {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the payload for queue {queue} has {} bytes; at most {} are allowed",
            payload.len(),
            self.payload
        ))
        .remedy(
            "store the data elsewhere and schedule a reference to it, or raise `limits.payload`",
        ))
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
