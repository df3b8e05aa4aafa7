//! Arguments and results of `settle`.

use bytes::Bytes;

use super::claim::Lease;
use crate::model::{DeadReason, Due, truncate_message};

/// An argument of `settle`: a lease and the verdict that ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The verdict.
    pub verdict: Verdict,
}

impl Settlement {
    /// Creates a settlement.
    pub const fn new(lease: Lease, verdict: Verdict) -> Self {
        Self { lease, verdict }
    }
}

/// The outcome of a run, which ends the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The job succeeded and leaves the store as done.
    Done,
    /// There was nothing to do; the job leaves the store as skipped.
    Skip {
        /// Why there was nothing to do; at most [`DeadReason::MAX_BYTES`] bytes.
        reason: String,
    },
    /// The job failed and is due again. `attempts` is one higher, `losses` zero; `first_due` stays.
    Retry {
        /// When the job is due again.
        due: Due,
        /// Why it failed; at most [`DeadReason::MAX_BYTES`] bytes.
        error: String,
    },
    /// The job's next step, due as if scheduled anew, with another payload. `attempts` and `losses`
    /// are zero; id, key and headers stay.
    ///
    /// Requires [`Capabilities::again`](super::Capabilities::again).
    Again {
        /// When the job is due.
        due: Due,
        /// The encoded payload of the next step.
        payload: Bytes,
    },
    /// The job is due again at this time. `attempts` and `first_due` stay; `losses` is zero.
    Snooze(Due),
    /// Like [`Self::Snooze`]; no job of the queue starts before this time, in any process.
    ///
    /// Requires [`Capabilities::flow`](super::Capabilities::flow).
    Throttle(Due),
    /// The job is dead until an operator replays or removes it.
    Dead {
        /// Why the job is dead.
        reason: DeadReason,
        /// Whether the attempt counts in `attempts`; see
        /// [`DeadKind::is_failed_attempt`](crate::model::DeadKind::is_failed_attempt).
        failed: bool,
    },
    /// The job comes back unfinished, due at its old due time, so at once. `attempts` and `losses`
    /// stay.
    Release {
        /// Whether the handler had started. If not, `deliveries` is decremented.
        started: bool,
    },
}

impl Verdict {
    /// Creates [`Self::Dead`]; the kind decides whether the attempt counts as failed.
    pub const fn dead(reason: DeadReason) -> Self {
        let failed = reason.kind.is_failed_attempt();
        Self::Dead { reason, failed }
    }

    /// Creates [`Self::Skip`] with a truncated reason.
    pub fn skip(reason: impl Into<String>) -> Self {
        Self::Skip { reason: truncate_message(reason.into()) }
    }

    /// Creates [`Self::Retry`] with a truncated error.
    pub fn retry(due: Due, error: impl Into<String>) -> Self {
        Self::Retry { due, error: truncate_message(error.into()) }
    }
}

/// Result of `settle` for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The verdict took effect.
    Accepted,
    /// The lease was no longer held, and nothing changed.
    LostLease,
}
