//! One timer that keeps all leases of one store, whatever their handlers are doing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::Event;
use super::slots::BATCH;
use super::source::Source;
use crate::backend::{Backend, Renewal, Renewed};

/// Renews for ever. A tick is a sixth of the shortest lease, so that a lease is renewed while at
/// least half of it is left; a tick without old leases costs no store call.
pub(super) async fn run(source: Arc<Source>) -> Infallible {
    let machine = &source.machine;
    let shortest = machine.served.iter().map(|served| served.policy.lease).min();
    let tick = shortest.unwrap_or(Duration::from_secs(60)) / 6;
    loop {
        machine.clock().sleep(tick).await;
        let old = source.leases.to_renew(machine.clock().elapsed());
        tokio::select! {
            () = renew(&source, &old) => {}
            // A store that hangs must not keep holders from learning that their time is up.
            () = machine.clock().sleep(tick), if !old.is_empty() => {
                tracing::warn!(leases = old.len(), "the store takes too long to renew leases");
            }
        }
        for number in source.leases.ended(machine.clock().elapsed()) {
            tell_lost(&source, number);
        }
    }
}

async fn renew(source: &Source, old: &[(u64, Renewal)]) {
    let machine = &source.machine;
    for batch in old.chunks(BATCH) {
        let asked = machine.clock().elapsed();
        let renewals: Vec<_> = batch.iter().map(|(_, renewal)| renewal.clone()).collect();
        match source.store.renew(&renewals).await {
            Ok(answers) => {
                machine.observers.tell(&Event::Renewed { leases: answers.len() });
                for ((number, _), answer) in batch.iter().zip(answers) {
                    match answer {
                        Renewed::Until(_) => source.leases.renewed(*number, asked),
                        Renewed::Lost => tell_lost(source, *number),
                    }
                }
            }
            // The next tick asks again; there are at least three before a lease ends.
            Err(error) => {
                tracing::warn!(%error, "leases could not be renewed");
                machine.observers.tell(&Event::StoreFailed(&error));
            }
        }
    }
}

fn tell_lost(source: &Source, number: u64) {
    if let Some(lease) = source.leases.lose(number) {
        tracing::warn!(queue = %lease.queue, id = %lease.job, "the lease was lost while the handler ran");
        source.machine.observers.tell(&Event::LeaseLost(&lease));
    }
}
