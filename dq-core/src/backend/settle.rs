//! Arguments and results of `settle`.

use bytes::Bytes;

use super::claim::Lease;
use crate::model::{DeadReason, Due, truncate_message};

/// A lease and the verdict that ends it: an argument of `settle`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The verdict on the job.
    pub verdict: Verdict,
}

impl Settlement {
    /// Creates a settlement.
    #[must_use]
    pub const fn new(lease: Lease, verdict: Verdict) -> Self {
        Self { lease, verdict }
    }
}

/// What happens to a job when its lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The job succeeded: it leaves the store and counts as done.
    Done,
    /// There was nothing to do: the job leaves the store and counts as skipped.
    Skip {
        /// Why there was nothing to do; at most [`DeadReason::MAX_BYTES`] bytes.
        reason: String,
    },
    /// The job failed: it is due again at this time, with `attempts` one higher and `losses` zero;
    /// `first_due` stays.
    Retry {
        /// When the job is due again.
        due: Due,
        /// Why it failed; at most [`DeadReason::MAX_BYTES`] bytes.
        error: String,
    },
    /// The next step of the same job: it is due at this time, as if at first, with another payload
    /// and with `attempts` and `losses` zero. Id, key and headers stay.
    ///
    /// Requires [`Capabilities::again`](super::Capabilities::again).
    Again {
        /// When the job is due.
        due: Due,
        /// The encoded payload of the next step.
        payload: Bytes,
    },
    /// The job is postponed: it is due again at this time, with `attempts` and `first_due` unchanged
    /// and `losses` zero.
    Snooze(Due),
    /// The job is dead: it stays in the store until an operator replays or removes it.
    Dead {
        /// Why the job is dead.
        reason: DeadReason,
        /// Whether this attempt counts as failed, so that `attempts` is one higher; see
        /// [`DeadKind::is_failed_attempt`](crate::model::DeadKind::is_failed_attempt).
        failed: bool,
    },
    /// The job is handed back unfinished: it is due again at its old due time, that is, at once,
    /// with `attempts` and `losses` unchanged.
    Release {
        /// Whether the handler had started. If not, `deliveries` is decremented.
        started: bool,
    },
}

impl Verdict {
    /// [`Self::Dead`], as a failed attempt if the kind of reason is one.
    #[must_use]
    pub const fn dead(reason: DeadReason) -> Self {
        let failed = reason.kind.is_failed_attempt();
        Self::Dead { reason, failed }
    }

    /// [`Self::Skip`], with the reason truncated to its maximum length.
    pub fn skip(reason: impl Into<String>) -> Self {
        Self::Skip { reason: truncate_message(reason.into()) }
    }

    /// [`Self::Retry`], with the error truncated to its maximum length.
    pub fn retry(due: Due, error: impl Into<String>) -> Self {
        Self::Retry { due, error: truncate_message(error.into()) }
    }
}

/// Whether the store accepted how a run ended: the result of `settle` for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The verdict took effect.
    Accepted,
    /// The lease was no longer held; nothing changed.
    Stale,
}
