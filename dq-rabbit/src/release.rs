//! Releases leases in the background: claims that nobody waits for, and jobs without a readable
//! payload.
//!
//! A claim may be applied after its caller has given up: the broker was too slow, or the future was
//! dropped. Without a release, the jobs would wait until their leases expire. That still happens if
//! the replica was restored from a snapshot that contains the claim, because its reply is lost.

use std::sync::Weak;
use std::time::Duration;

use dq_core::{Claimed, ErrorKind, Lease, LeasedJob, Result, Settlement, Verdict};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::{command, wire};

/// Between attempts to release leases.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Leases that are released at once.
const BATCH: usize = 500;

/// Sends leases to [`release_all`].
#[derive(Debug, Clone)]
pub(crate) struct Releases(UnboundedSender<Lease>);

pub(crate) fn releases() -> (Releases, UnboundedReceiver<Lease>) {
    let (sender, receiver) = unbounded_channel();
    (Releases(sender), receiver)
}

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

/// Runs until the engine is dropped or closed, or the log cannot be read any further.
pub(crate) async fn release_all(engine: Weak<Engine>, mut leases: UnboundedReceiver<Lease>) {
    let mut batch = Vec::new();
    while leases.recv_many(&mut batch, BATCH).await > 0 {
        tracing::debug!(jobs = batch.len(), "releasing leases");
        let released = batch.drain(..).map(|lease| {
            let verdict = Verdict::Release { started: false };
            wire::Settlement::try_from(&Settlement::new(lease, verdict))
        });
        let released: Result<Vec<_>> = released.collect();
        let released = released.expect("the release of a lease can be encoded");
        loop {
            let Some(engine) = engine.upgrade() else { return };
            let command = command::Settle(released.clone());
            let settled = engine.log.call("release", LostReply::Unavailable, command, |_, _, _| ());
            match settled.await {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(_) if engine.log.failure("release").is_some() => return,
                Err(error) => tracing::debug!(%error, "leases cannot be released yet"),
            }
            drop(engine);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}
