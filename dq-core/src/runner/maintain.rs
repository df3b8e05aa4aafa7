//! Looks after what no other loop sees: findings about the store, and queues that nobody serves.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::source::Source;
use crate::backend::{Backend, Severity};
use crate::model::QueueName;

/// Seldom, as the calls add to those of an idle runner.
const INTERVAL: Duration = Duration::from_secs(600);

/// Looks at once and then every ten minutes; says each thing once.
pub(super) async fn run(source: Arc<Source>) -> Infallible {
    let mut said = HashSet::new();
    let mut unserved = HashSet::new();
    loop {
        for finding in source.store.check().await {
            if said.insert(finding.clone().to_string()) {
                match finding.severity {
                    Severity::Info => tracing::info!(%finding, "check"),
                    Severity::Warning => tracing::warn!(%finding, "check"),
                    Severity::Error => tracing::error!(%finding, "check"),
                }
            }
        }
        warn_of_unserved(&source, &mut unserved).await;
        source.machine.clock().sleep(INTERVAL).await;
    }
}

/// Due jobs of a queue without a handler here may well be another service's business, or a crate
/// that was not linked.
async fn warn_of_unserved(source: &Source, said: &mut HashSet<QueueName>) {
    let Ok(all) = source.store.stats(&[]).await else { return };
    for stats in all {
        let served = source.machine.served(&stats.queue).is_some();
        if !served && !stats.paused && stats.ready > 0 && said.insert(stats.queue.clone()) {
            tracing::warn!(
                queue = %stats.queue,
                due = stats.ready,
                "jobs are due in a queue that has no handler in this process; if it should have one, \
                 is the handlers' crate linked? a crate that is never named in code registers \
                 nothing: write `use my_handlers as _;`"
            );
        }
    }
}
