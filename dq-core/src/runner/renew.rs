//! Renews the leases of one store, all with one timer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ahead::BATCH;
use super::events::Event;
use super::lease_clock::LeaseTime;
use super::leases::LeaseNumber;
use super::store::{StoreContext, report_lost};
use crate::backend::{Backend, Renewal, Renewed};
use crate::error::ErrorKind;

const NOT_RENEWED: &str = "it was not renewed in time (does an async handler block its thread? make \
                           it a plain `fn` with `blocking`)";

/// Renews leases forever.
///
/// The period is a sixth of the shortest lease, so each lease is renewed with at least half of it
/// left.
///
/// A call longer than the period continues beside the timer: its late answer still counts, and
/// leases that expire meanwhile are noticed.
pub(super) async fn run(context: Arc<StoreContext>) -> Infallible {
    let clock = context.runner.clock();
    let shortest = context.runner.queues.iter().map(|served| served.policy.lease).min();
    let period = shortest.unwrap_or(Duration::from_secs(60)) / 6;
    let mut calls = FuturesUnordered::new();
    let mut timer = clock.sleep(period);
    loop {
        tokio::select! {
            () = &mut timer => {
                timer = clock.sleep(period);
                let LeaseTime { now, without_jump } = context.leases.clock.tick();
                // After a jump of the time of day the store is asked first: its clock may not have
                // jumped. Unless it answers, the leases are lost at the next tick.
                for number in context.leases.expired(without_jump) {
                    if let Some(lease) = context.leases.mark_lost(number) {
                        report_lost(&context.runner, &lease, NOT_RENEWED);
                    }
                }
                let (renewals, repeated) = context.leases.to_renew(now);
                if repeated > 0 {
                    tracing::warn!(leases = repeated, "the store takes too long to renew leases");
                }
                for batch in renewals.chunks(BATCH) {
                    calls.push(renew(&context, batch.to_vec(), now));
                }
            }
            Some(()) = calls.next() => {}
        }
    }
}

/// Renews these leases, and marks those as lost that the store no longer knows.
async fn renew(context: &StoreContext, batch: Vec<(LeaseNumber, Renewal)>, sent_at: Duration) {
    let runner = &context.runner;
    let (numbers, renewals): (Vec<LeaseNumber>, Vec<Renewal>) = batch.into_iter().unzip();
    // A late answer counts until each lease is renewed by a repeated call, or has expired.
    let longest = renewals.iter().map(|renewal| renewal.lease_for).max().unwrap_or_default();
    match runner.call_within(longest, "renew", context.store.renew(&renewals)).await {
        Ok(results) => {
            runner.observers.notify(&Event::Renewed { leases: results.len() });
            for (number, result) in numbers.into_iter().zip(results) {
                match result {
                    Renewed::Until(_) => {
                        context.leases.renewal_answered(number, Some(sent_at));
                    }
                    Renewed::LostLease => {
                        if let Some(lease) = context.leases.mark_lost(number) {
                            report_lost(runner, &lease, NOT_RENEWED);
                        }
                    }
                }
            }
        }
        // The next period retries; at least three remain before a lease expires.
        Err(error) => {
            // The store may be closed after shutdown while a blocking handler still runs; the lease
            // expires.
            if error.kind() != ErrorKind::Closed {
                tracing::warn!(%error, leases = numbers.len(), "leases could not be renewed");
                runner.observers.notify(&Event::StoreFailed(&error));
            }
            for number in numbers {
                context.leases.renewal_answered(number, None);
            }
        }
    }
}
