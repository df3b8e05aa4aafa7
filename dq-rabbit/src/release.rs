//! Releases leases in the background: of claims that nobody waits for, and of jobs without a
//! readable payload.

use std::sync::Weak;
use std::time::Duration;

use dq_core::{ErrorKind, Lease, Result, Settled, Settlement, Verdict};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::Replica;
use crate::log::wire::{self, Command};

const RETRY_PAUSE: Duration = Duration::from_millis(500);

const BATCH: usize = 500;

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
            let command = Command::Settle(released.clone());
            let ignore = |_: &mut Replica, _: Vec<Settled>, _| ();
            let settled = engine.log.call("release", LostReply::Unavailable, command, ignore);
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
