//! The settle loop of one store: it reports run results to the store, in batches.
//!
//! There is no timer: results that arrive during one call form the next batch.
//!
//! After a retryable error or no answer, the call is repeated, without settlements whose leases
//! were lost meanwhile. These stay if an earlier call may have taken effect: only the store knows.
//! After any other error each settlement is retried alone, so that a bad one does not block the
//! others. A job whose settlement fails again runs when its lease expires.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::ahead::BATCH;
use super::events::Event;
use super::leases::LeaseGuard;
use super::shared::RunnerShared;
use super::store::{FinishedRun, StoreContext, report_settled};
use crate::backend::{Backend, Checked, Settlement};
use crate::error::ErrorKind;
use crate::model::Backoff;

const RETRY: Backoff = Backoff {
    initial: Duration::from_millis(50),
    factor: 2.0,
    max: Duration::from_secs(2),
    jitter: 0.0,
};

pub(super) async fn run(context: Arc<StoreContext>, mut finished: mpsc::Receiver<FinishedRun>) {
    let store = Arc::clone(&context.store);
    let runner = Arc::clone(&context.runner);
    // It holds a sender, which would keep this loop running.
    drop(context);
    let mut batch = Vec::with_capacity(BATCH);
    while receive_batch(&mut finished, &mut batch).await > 0 {
        let (settlements, leases): (Vec<_>, Vec<_>) =
            batch.drain(..).map(|run: FinishedRun| (run.settlement, run.lease)).unzip();
        let Some(refused) = settle(&runner, &store, settlements, leases, false).await else {
            continue;
        };
        for (settlement, lease) in refused {
            // The refused call may have settled part of the batch.
            settle(&runner, &store, vec![settlement], vec![lease], true).await;
        }
    }
}

/// Settles runs in one call, repeated while the store is unavailable. Returns them if the store
/// refused several at once. `outcome_unknown` says that some may be settled already.
async fn settle(
    runner: &RunnerShared,
    store: &Checked,
    mut settlements: Vec<Settlement>,
    mut leases: Vec<Option<LeaseGuard>>,
    mut outcome_unknown: bool,
) -> Option<impl Iterator<Item = (Settlement, Option<LeaseGuard>)>> {
    let mut failures = 0;
    while !settlements.is_empty() {
        match runner.call("settle", store.settle(&settlements)).await {
            Ok(results) => {
                for ((settlement, lease), result) in settlements.iter().zip(&leases).zip(results) {
                    let may_have_ended = lease.as_ref().is_some_and(LeaseGuard::may_have_ended_job);
                    report_settled(runner, settlement, result, outcome_unknown || may_have_ended);
                }
                break;
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, jobs = leases.len(), "settlements wait for the store");
                runner.observers.notify(&Event::StoreFailed(&error));
                outcome_unknown |= error.kind() == ErrorKind::OutcomeUnknown;
                failures += 1;
                runner.clock().sleep(RETRY.delay(failures, 0.0)).await;
                if !outcome_unknown {
                    drop_lost(runner, &mut settlements, &mut leases);
                }
            }
            Err(error) if settlements.len() > 1 && error.kind() != ErrorKind::Closed => {
                tracing::warn!(%error, jobs = leases.len(),
                    "settlements were refused; settling each by itself");
                runner.observers.notify(&Event::StoreFailed(&error));
                return Some(settlements.into_iter().zip(leases));
            }
            Err(error) => {
                tracing::error!(%error, jobs = leases.len(),
                    "settlements were refused; the jobs run again when their leases expire");
                runner.observers.notify(&Event::StoreFailed(&error));
                break;
            }
        }
    }
    None
}

/// Receives until the batch is full or the other tasks send no more. Returns zero when all senders
/// are dropped.
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

/// Drops settlements whose leases were lost, and reports losses not reported during the run.
///
/// Settlements without a guard (the handler never started) stay until the store answers.
fn drop_lost(
    runner: &RunnerShared,
    settlements: &mut Vec<Settlement>,
    leases: &mut Vec<Option<LeaseGuard>>,
) {
    let both = settlements.drain(..).zip(leases.drain(..));
    let (lost, kept): (Vec<_>, Vec<_>) =
        both.partition(|(_, lease)| lease.as_ref().is_some_and(|lease| lease.lost.is_cancelled()));
    (*settlements, *leases) = kept.into_iter().unzip();
    for (Settlement { lease, .. }, guard) in lost {
        if guard.is_some_and(|guard| guard.lost_in_run) {
            continue;
        }
        tracing::warn!(queue = %lease.queue, id = %lease.job,
            "the lease was lost before the store accepted the result; the job runs again");
        runner.observers.notify(&Event::LeaseLost(&lease));
    }
}
