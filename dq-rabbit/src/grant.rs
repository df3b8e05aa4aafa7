//! Releases the leases of a claim when nobody waits for it any more.
//!
//! A claim may be applied after its caller has given up. Without a release, the jobs would wait
//! until their leases expire. That still happens if the replica was restored from a snapshot that
//! contains the claim, because its reply is lost.

use dq_core::{Claimed, Lease};
use tokio::sync::mpsc::UnboundedSender;

/// The jobs of a claim. Unless the caller takes them, their leases are released.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) claimed: Claimed,
    releases: UnboundedSender<Lease>,
}

impl Granted {
    pub(crate) fn new(claimed: Claimed, releases: UnboundedSender<Lease>) -> Self {
        Self { claimed, releases }
    }

    pub(crate) fn take(mut self) -> Claimed {
        let Claimed { next_due, now, .. } = self.claimed;
        std::mem::replace(&mut self.claimed, Claimed::new(Vec::new(), next_due, now))
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        for leased in &self.claimed.jobs {
            // If the backend is closed, the lease expires.
            let _ = self.releases.send(leased.lease());
        }
    }
}
