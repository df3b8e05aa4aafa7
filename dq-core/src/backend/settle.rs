//! Questions and answers of settle: how a lease ends.

use super::claim::Lease;
use crate::model::{DeadReason, Due};

/// How one lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// How it ends.
    pub verdict: Verdict,
}

/// What a lease's holder says of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Done: the job leaves the store.
    Done,
    /// There was nothing to do: the job leaves the store and counts as skipped.
    Skip,
    /// Failed: due again at this time, `attempts` one higher, `losses` zero.
    Retry(Due),
    /// Not yet: due again at this time, `attempts` unchanged, `losses` zero.
    Snooze(Due),
    /// Kept for an operator. `failed` says whether this attempt counts as a failed one.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Whether `attempts` is one higher.
        failed: bool,
    },
    /// Handed back unfinished: due again at its old time, so at once. `deliveries` goes back by
    /// one unless the handler had `started`.
    Release {
        /// Whether the handler had been started.
        started: bool,
    },
}

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It took effect.
    Accepted,
    /// The lease was not held any more; nothing changed.
    Stale,
}
