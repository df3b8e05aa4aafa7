//! Leases that the log has granted to a claim, and their release if nobody waits for the claim any
//! more.
//!
//! A claim may be applied after its caller has given up: the broker did not respond, or the future
//! was dropped. Without a release, its jobs would wait until their leases lapse. One case remains
//! where they do: the replica was restored from a snapshot that contains the claim, so its reply is
//! lost, and with it which jobs it leased.

use dq_core::{Claimed, Lease, LeasedJob};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Takes leases that are to be released. They reach
/// [`release_all`](crate::release::release_all).
#[derive(Debug, Clone)]
pub(crate) struct Releases(UnboundedSender<Lease>);

impl Releases {
    /// Has a lease released in the background. If the backend is closed, the lease lapses instead.
    pub(crate) fn release(&self, lease: Lease) {
        let _ = self.0.send(lease);
    }
}

/// The jobs of a claim. Unless they are taken, their leases are released.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) claimed: Claimed,
    /// `None` once they are taken.
    releases: Option<Releases>,
}

impl Granted {
    pub(crate) fn new(claimed: Claimed, releases: Releases) -> Self {
        Self { claimed, releases: Some(releases) }
    }

    /// Hands the jobs over to the caller.
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

/// A sender of leases, and the receiver for [`release_all`](crate::release::release_all).
pub(crate) fn releases() -> (Releases, UnboundedReceiver<Lease>) {
    let (sender, receiver) = unbounded_channel();
    (Releases(sender), receiver)
}
