//! The leases of a claim, which are released when nobody waits for the claim any more.
//!
//! A claim may be applied after its caller has given up: the broker was too slow, or the future was
//! dropped. Without a release, the jobs would wait until their leases expire. That still happens if
//! the replica was restored from a snapshot that contains the claim, because its reply is lost.

use dq_core::{Claimed, Lease, LeasedJob};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Sends leases to [`release_all`](crate::release::release_all).
#[derive(Debug, Clone)]
pub(crate) struct Releases(UnboundedSender<Lease>);

impl Releases {
    /// Releases a lease in the background. If the backend is closed, the lease expires.
    pub(crate) fn release(&self, lease: Lease) {
        let _ = self.0.send(lease);
    }
}

/// The jobs of a claim. Unless the caller takes them, their leases are released.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) claimed: Claimed,
    /// `None` once the caller has taken the jobs.
    releases: Option<Releases>,
}

impl Granted {
    pub(crate) fn new(claimed: Claimed, releases: Releases) -> Self {
        Self { claimed, releases: Some(releases) }
    }

    pub(crate) fn take(mut self) -> Claimed {
        self.releases = None;
        let Claimed { next_due, now, .. } = self.claimed;
        std::mem::replace(&mut self.claimed, Claimed::new(Vec::new(), next_due, now))
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Some(releases) = &self.releases else { return };
        for lease in self.claimed.jobs.iter().map(LeasedJob::lease) {
            releases.release(lease);
        }
    }
}

pub(crate) fn releases() -> (Releases, UnboundedReceiver<Lease>) {
    let (sender, receiver) = unbounded_channel();
    (Releases(sender), receiver)
}
