//! Tells the store how runs ended: whatever has come together while the call before was under way,
//! in one call.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Event;
use super::leases::Hold;
use super::slots::BATCH;
use super::source::{Ended, Source, tell};
use crate::backend::{Backend, Settlement};
use crate::error::ErrorKind;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Settles until every way in is closed.
pub(super) async fn run(source: Arc<Source>, mut ended: mpsc::Receiver<Ended>) {
    // The source itself holds a way in; this loop must not keep itself alive.
    let store = Arc::clone(&source.store);
    let machine = Arc::clone(&source.machine);
    drop(source);
    let mut batch = Vec::with_capacity(BATCH);
    while gather(&mut ended, &mut batch).await > 0 {
        let (mut settlements, mut holds): (Vec<_>, Vec<_>) =
            batch.drain(..).map(|ended: Ended| (ended.settlement, ended.hold)).unzip();
        let mut pause = FIRST_RETRY;
        let mut unsure = false;
        while !settlements.is_empty() {
            match store.settle(&settlements).await {
                Ok(answers) => {
                    for (settlement, answer) in settlements.iter().zip(answers) {
                        tell(&machine, settlement, answer, unsure);
                    }
                    break;
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, jobs = holds.len(), "settlements wait for the store");
                    machine.observers.tell(&Event::StoreFailed(&error));
                    unsure |= error.kind() == ErrorKind::OutcomeUnknown;
                    machine.clock().sleep(pause).await;
                    pause = (pause * 2).min(LAST_RETRY);
                    drop_lost(&mut settlements, &mut holds);
                }
                Err(error) => {
                    tracing::error!(%error, jobs = holds.len(),
                        "settlements were refused; the jobs run again when their leases lapse");
                    machine.observers.tell(&Event::StoreFailed(&error));
                    break;
                }
            }
        }
    }
}

/// What has ended, and what ends in this moment: until a turn of all others has brought nothing more,
/// or there is enough. None if every way in is closed.
async fn gather(ended: &mut mpsc::Receiver<Ended>, batch: &mut Vec<Ended>) -> usize {
    let mut brought = ended.recv_many(batch, BATCH).await;
    while brought > 0 && batch.len() < BATCH {
        tokio::task::yield_now().await;
        brought = match ended.len() {
            0 => 0,
            _ => ended.recv_many(batch, BATCH - batch.len()).await,
        };
    }
    batch.len()
}

/// Who lost the lease has nothing to say any more.
fn drop_lost(settlements: &mut Vec<Settlement>, holds: &mut Vec<Option<Hold>>) {
    let lost = |hold: &Option<Hold>| hold.as_ref().is_some_and(|hold| hold.lost.is_cancelled());
    let both = settlements.drain(..).zip(holds.drain(..));
    (*settlements, *holds) = both.filter(|(_, hold)| !lost(hold)).unzip();
}
