//! A job's placement, and a machine's notes about the job.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::FencingToken;
use crate::model::{DeadReason, Timestamp};

/// A backend's data for each job in place of its payload and headers, such as their position.
pub trait Stored: Clone + Default {
    /// The size of payload and headers in the owner's snapshot; see [`Sizes`](super::Sizes).
    fn bytes(&self) -> u64;
}

/// For machines whose jobs contain their payloads and headers.
impl Stored for () {
    fn bytes(&self) -> u64 {
        0
    }
}

/// A machine's notes about a job, for operators and for the job's end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNotes {
    /// Error of the last failed run.
    pub last_error: Option<String>,
    /// Holder of the last lease.
    pub worker: Option<Arc<str>>,
    /// When the last lease was granted.
    pub leased_since: Option<Timestamp>,
    /// See [`NewJob::remember`](crate::model::NewJob::remember).
    pub remember: Duration,
}

/// A job's place. Unlike its [`JobState`](crate::JobState), it does not depend on the time: a
/// waiting job is scheduled or ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPlacement {
    /// The job waits for its due time or for a claim.
    Waiting,
    /// The job is leased.
    Leased {
        /// The lease's token.
        token: FencingToken,
        /// When the lease expires.
        until: Timestamp,
    },
    /// The reason and the time of death.
    Dead(Box<DeadReason>, Timestamp),
}
