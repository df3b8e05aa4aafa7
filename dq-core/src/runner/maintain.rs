//! Logs findings of the store, and queues with due jobs but without a handler.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::store::StoreContext;
use crate::backend::{Backend, Severity};
use crate::model::QueueName;

/// Interval of the checks. Long, since an idle runner should make few calls.
const INTERVAL: Duration = Duration::from_secs(600);

/// Checks the store at start and every ten minutes; logs each finding once.
pub(super) async fn run(context: Arc<StoreContext>) -> Infallible {
    let mut logged_findings = HashSet::new();
    let mut logged_queues = HashSet::new();
    loop {
        for finding in context.store.check().await {
            if logged_findings.insert(finding.clone().to_string()) {
                match finding.severity {
                    Severity::Info => tracing::info!(%finding, "check"),
                    Severity::Warning => tracing::warn!(%finding, "check"),
                    Severity::Error => tracing::error!(%finding, "check"),
                }
            }
        }
        warn_of_unserved_queues(&context, &mut logged_queues).await;
        context.runner.clock().sleep(INTERVAL).await;
    }
}

/// Logs each queue once that has due jobs but no handler in this process: another service may
/// handle it, or the handler's crate is not linked.
async fn warn_of_unserved_queues(context: &StoreContext, logged: &mut HashSet<QueueName>) {
    let Ok(all) = context.store.stats(&[]).await else { return };
    for stats in all {
        let is_waiting = !stats.paused && stats.ready > 0;
        if is_waiting && !context.runner.serves(&stats.queue) && logged.insert(stats.queue.clone())
        {
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
