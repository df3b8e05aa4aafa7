//! Leases on their way to the caller.

use dq_core::{Claimed, Settlement, Verdict};

use crate::settle::settle;
use crate::submit::{Errands, Weight};

/// A claim's answer. If the caller has gone before it arrives, the leases are given back at once
/// instead of holding the jobs for their whole time.
///
/// It is made only of leases whose commit is confirmed. Tokens of a transaction that was undone are
/// given out again, so giving such a lease back would end that of another.
#[derive(Debug)]
pub(crate) struct Granted {
    claimed: Claimed,
    errands: Errands,
}

impl Granted {
    pub(crate) const fn confirmed(claimed: Claimed, errands: Errands) -> Self {
        Self { claimed, errands }
    }

    /// Hands the leases over.
    pub(crate) fn accept(mut self) -> Claimed {
        let Claimed { next_due, now, .. } = self.claimed;
        Claimed { jobs: std::mem::take(&mut self.claimed.jobs), next_due, now }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if self.claimed.jobs.is_empty() {
            return;
        }
        let release = Verdict::Release { started: false };
        let releases: Vec<Settlement> = self
            .claimed
            .jobs
            .iter()
            .map(|job| Settlement { lease: job.lease(), verdict: release.clone() })
            .collect();
        self.errands.leave(Weight::items(releases.len()), move |tx| {
            releases.iter().try_for_each(|release| settle(tx, release).map(drop))
        });
    }
}
