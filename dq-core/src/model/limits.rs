//! How large things may be, and the one check for names.

use std::time::Duration;

use super::{NewJob, Timestamp};
use crate::error::{Error, Result};

/// Bounds that are checked before anything reaches a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest payload in bytes; 1 MiB unless set.
    pub payload: usize,
    /// All header names and values of one job together in bytes; 16 KiB unless set.
    pub headers: usize,
    /// Farthest due time ahead of now; 100 years of 365 days unless set.
    pub horizon: Duration,
    /// Most jobs in one bulk call; 100,000 unless set.
    pub bulk: usize,
}

impl Limits {
    /// Longest queue name in bytes of UTF-8.
    pub const QUEUE_NAME: usize = 128;
    /// Longest job key in bytes of UTF-8.
    pub const KEY: usize = 255;

    /// Checks a job before anything is stored; names were checked when they were made.
    ///
    /// # Errors
    /// `InvalidInput` naming the bound that was crossed.
    pub fn check(&self, job: &NewJob, now: Timestamp) -> Result<()> {
        if job.payload.len() > self.payload {
            return Err(Error::invalid(format!(
                "the payload for queue {} has {} bytes; at most {} are allowed",
                job.queue,
                job.payload.len(),
                self.payload
            ))
            .remedy(
                "store the data elsewhere and schedule its address, or raise `limits.payload`",
            ));
        }
        if job.max_attempts == Some(0) {
            return Err(Error::invalid(format!(
                "max_attempts of a job for queue {} is 0",
                job.queue
            ))
            .remedy("1 means no retry"));
        }
        job.headers.validate(self)?;
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

/// Refuses a name that is empty, longer than `max` bytes, or holds a control character.
pub(super) fn check_name(what: &str, name: &str, max: usize) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(format!("the {what} is empty")));
    }
    if name.len() > max {
        let head: String = name.chars().take(24).collect();
        return Err(Error::invalid(format!(
            "the {what} {head:?}… has {} bytes; at most {max} are allowed",
            name.len()
        ))
        .remedy("shorten it, or hash the variable part"));
    }
    if let Some(control) = name.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!(
            "the {what} {name:?} holds the control character {control:?}"
        )));
    }
    Ok(())
}
