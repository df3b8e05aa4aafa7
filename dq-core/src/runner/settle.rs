//! Reports results of runs to the store, in batches.
//!
//! There is no timer: results that arrive during one call form the next batch. A call that fails
//! with a retryable error is repeated, without the settlements whose leases were lost meanwhile.
//! Other errors are not retried: the jobs run again when their leases expire.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::events::Event;
use super::leases::LeaseGuard;
use super::slots::BATCH;
use super::store::{FinishedRun, StoreContext, report_settled};
use crate::backend::{Backend, Settlement};
use crate::error::ErrorKind;

/// Delay after the first failed call; doubled after each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum delay after failed calls.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Settles finished runs until all senders are dropped.
pub(super) async fn run(context: Arc<StoreContext>, mut finished: mpsc::Receiver<FinishedRun>) {
    // The context holds a sender, which would keep this loop running.
    let store = Arc::clone(&context.store);
    let runner = Arc::clone(&context.runner);
    drop(context);
    let mut batch = Vec::with_capacity(BATCH);
    while receive_batch(&mut finished, &mut batch).await > 0 {
        let (mut settlements, mut leases): (Vec<_>, Vec<_>) =
            batch.drain(..).map(|run: FinishedRun| (run.settlement, run.lease)).unzip();
        let mut retry_delay = MIN_RETRY_DELAY;
        let mut outcome_unknown = false;
        while !settlements.is_empty() {
            match store.settle(&settlements).await {
                Ok(results) => {
                    for (settlement, result) in settlements.iter().zip(results) {
                        report_settled(&runner, settlement, result, outcome_unknown);
                    }
                    break;
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, jobs = leases.len(), "settlements wait for the store");
                    runner.observers.notify(&Event::StoreFailed(&error));
                    outcome_unknown |= error.kind() == ErrorKind::OutcomeUnknown;
                    runner.clock().sleep(retry_delay).await;
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                    drop_lost(&mut settlements, &mut leases);
                }
                Err(error) => {
                    tracing::error!(%error, jobs = leases.len(),
                        "settlements were refused; the jobs run again when their leases expire");
                    runner.observers.notify(&Event::StoreFailed(&error));
                    break;
                }
            }
        }
    }
}

/// Receives finished runs until none arrives during one turn of the other tasks, or the batch is
/// full. Returns the size of the batch; zero if all senders are dropped.
async fn receive_batch(
    finished: &mut mpsc::Receiver<FinishedRun>,
    batch: &mut Vec<FinishedRun>,
) -> usize {
    let mut received = finished.recv_many(batch, BATCH).await;
    while received > 0 && batch.len() < BATCH {
        tokio::task::yield_now().await;
        received = match finished.len() {
            0 => 0,
            _ => finished.recv_many(batch, BATCH - batch.len()).await,
        };
    }
    batch.len()
}

/// Drops settlements whose lease was lost. Those without a guard (the handler never started) are
/// kept until the store answers.
fn drop_lost(settlements: &mut Vec<Settlement>, leases: &mut Vec<Option<LeaseGuard>>) {
    let is_lost =
        |lease: &Option<LeaseGuard>| lease.as_ref().is_some_and(|lease| lease.lost.is_cancelled());
    let both = settlements.drain(..).zip(leases.drain(..));
    (*settlements, *leases) = both.filter(|(_, lease)| !is_lost(lease)).unzip();
}
