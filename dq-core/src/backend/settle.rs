//! Arguments and results of `settle`.

use super::claim::Lease;
use crate::model::{DeadReason, Due};

/// A lease and the verdict that ends it: an argument of `settle`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The verdict on the job.
    pub verdict: Verdict,
}

/// What happens to a job when its lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The job succeeded: it leaves the store and counts as done.
    Done,
    /// There was nothing to do: the job leaves the store and counts as skipped.
    Skip,
    /// The job failed: it is due again at this time, with `attempts` one higher and `losses` zero.
    Retry(Due),
    /// The job is postponed: it is due again at this time, with `attempts` unchanged and `losses`
    /// zero.
    Snooze(Due),
    /// The job is dead: it stays in the store until an operator replays or removes it.
    Dead {
        /// Why the job is dead.
        reason: DeadReason,
        /// Whether this attempt counts as failed, so that `attempts` is one higher.
        failed: bool,
    },
    /// The job is handed back unfinished: it is due again at its old due time, that is, at once.
    Release {
        /// Whether the handler had started. If not, `deliveries` is decremented.
        started: bool,
    },
}

/// The result of `settle` for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The verdict took effect.
    Accepted,
    /// The lease was no longer held; nothing changed.
    Stale,
}
