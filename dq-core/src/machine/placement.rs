//! What a machine keeps of each job beside the job itself.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::FencingToken;
use crate::model::{DeadReason, Timestamp};

/// What a machine keeps of a job for operators, and for its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNotes {
    /// The error of the last run that failed.
    pub last_error: Option<String>,
    /// The holder of the last lease.
    pub worker: Option<Arc<str>>,
    /// When the last lease was granted.
    pub leased_since: Option<Timestamp>,
    /// See [`NewJob::remember`](crate::model::NewJob::remember).
    pub remember: Duration,
}

/// Whether a job waits, is leased or is dead.
///
/// Unlike [`JobState`](crate::JobState), it does not depend on the time: a waiting job is scheduled or ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPlacement {
    /// The job waits for its due time or for a claim.
    Waiting,
    /// The job is leased.
    Leased {
        /// The token of the lease.
        token: FencingToken,
        /// The end of the lease.
        until: Timestamp,
    },
    /// The job is dead: the reason and the time of death.
    Dead(Box<DeadReason>, Timestamp),
}
