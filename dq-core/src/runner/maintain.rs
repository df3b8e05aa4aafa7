//! Logs store findings, queues with due jobs but no handler, and limits that another process has
//! replaced.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::events::Event;
use super::flow;
use super::store::StoreContext;
use crate::backend::{Backend, QueueStats, Severity};
use crate::error::Result;
use crate::model::QueueName;

/// Time between checks. Long, because an idle runner should make few calls.
const INTERVAL: Duration = Duration::from_secs(600);

pub(super) async fn run(context: Arc<StoreContext>) -> Infallible {
    let mut logged_findings = HashSet::new();
    let (mut logged_queues, mut told) = (HashSet::new(), HashMap::new());
    loop {
        let check = async { Ok(context.store.check().await) };
        for finding in answer(&context, "check", check).await.unwrap_or_default() {
            if logged_findings.insert(finding.clone().to_string()) {
                match finding.severity {
                    Severity::Info => tracing::info!(%finding, "check"),
                    Severity::Warning => tracing::warn!(%finding, "check"),
                    Severity::Error => tracing::error!(%finding, "check"),
                }
                context.runner.observers.notify(&Event::Finding(&finding));
            }
        }
        // Before the stats, which may be older than a declaration meanwhile.
        let has_declared = context.has_declared.load(Ordering::Relaxed);
        for stats in read_stats(&context).await {
            if !context.runner.is_restricted {
                warn_if_unserved(&context, &stats, &mut logged_queues);
            }
            if has_declared {
                flow::tell_if_replaced(&context, &stats, &mut told);
            }
        }
        context.runner.clock().sleep(INTERVAL).await;
    }
}

async fn answer<T>(
    context: &StoreContext,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Option<T> {
    let runner = &context.runner;
    match runner.call(operation, call).await {
        Ok(answer) => Some(answer),
        Err(error) => {
            tracing::warn!(%error, "the store was not checked");
            runner.observers.notify(&Event::StoreFailed(&error));
            None
        }
    }
}

/// Reads the stats of all queues, or of the runner's own if it serves some only.
async fn read_stats(context: &StoreContext) -> Vec<QueueStats> {
    let runner = &context.runner;
    let served = runner.queues.iter().filter(|_| runner.is_restricted);
    let queues: Vec<QueueName> = served.map(|served| served.queue.clone()).collect();
    answer(context, "stats", context.store.stats(&queues)).await.unwrap_or_default()
}

/// Logs each queue once: another service may handle it, or the handler's crate is not linked.
fn warn_if_unserved(context: &StoreContext, stats: &QueueStats, logged: &mut HashSet<QueueName>) {
    let is_waiting = !stats.paused && stats.ready > 0;
    let is_served = context.runner.index_of.contains_key(&stats.queue);
    if is_waiting && !is_served && logged.insert(stats.queue.clone()) {
        tracing::warn!(
            queue = %stats.queue,
            due = stats.ready,
            "jobs are due in a queue that has no handler in this process; if it should have one, \
             is the handlers' crate linked? a crate that is never named in code registers \
             nothing: write `use my_handlers as _;`. If the handler has another code now, keep \
             this one: `aliases = [\"OLD_CODE\"]`"
        );
    }
}
