//! Renews the leases of one store by one timer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::events::Event;
use super::slots::BATCH;
use super::store::StoreContext;
use crate::backend::{Backend, Renewal, Renewed};

/// Renews leases forever.
///
/// The timer's period is a sixth of the shortest lease, so that a lease is renewed while at least
/// half of it is left. Without leases to renew it does not call the store.
pub(super) async fn run(context: Arc<StoreContext>) -> Infallible {
    let clock = context.runner.clock();
    let shortest = context.runner.queues.iter().map(|served| served.policy.lease).min();
    let period = shortest.unwrap_or(Duration::from_secs(60)) / 6;
    loop {
        clock.sleep(period).await;
        let renewals = context.leases.to_renew(clock.elapsed());
        tokio::select! {
            () = renew(&context, &renewals) => {}
            // A store that does not answer must not delay the detection of expired leases.
            () = clock.sleep(period), if !renewals.is_empty() => {
                tracing::warn!(leases = renewals.len(), "the store takes too long to renew leases");
            }
        }
        for number in context.leases.expired(clock.elapsed()) {
            mark_lost(&context, number);
        }
    }
}

/// Renews these leases, each with its number in the tracker.
async fn renew(context: &StoreContext, renewals: &[(u64, Renewal)]) {
    let runner = &context.runner;
    for batch in renewals.chunks(BATCH) {
        let sent_at = runner.clock().elapsed();
        let renewals: Vec<_> = batch.iter().map(|(_, renewal)| renewal.clone()).collect();
        match context.store.renew(&renewals).await {
            Ok(results) => {
                runner.observers.notify(&Event::Renewed { leases: results.len() });
                for ((number, _), result) in batch.iter().zip(results) {
                    match result {
                        Renewed::Until(_) => context.leases.renewed(*number, sent_at),
                        Renewed::Lost => mark_lost(context, *number),
                    }
                }
            }
            // The next period tries again; there are at least three before a lease ends.
            Err(error) => {
                tracing::warn!(%error, "leases could not be renewed");
                runner.observers.notify(&Event::StoreFailed(&error));
            }
        }
    }
}

fn mark_lost(context: &StoreContext, number: u64) {
    if let Some(lease) = context.leases.mark_lost(number) {
        tracing::warn!(queue = %lease.queue, id = %lease.job,
            "the lease was lost while the handler ran (does an async handler block its thread? \
             make it a plain `fn` with `blocking`)");
        context.runner.observers.notify(&Event::LeaseLost(&lease));
    }
}
