//! Declares the limits of the runner's queues to a store, for all processes.

use std::collections::HashMap;

use futures_util::future::try_join_all;

use super::events::Event;
use super::shared::{RunnerShared, ServedQueue};
use super::store::StoreContext;
use crate::backend::{Backend, Checked, Operation, QueueStats};
use crate::error::{Error, Result};
use crate::model::{Flow, QueueName};

/// Declares all queues' limits, also that there are none: the declaration of an older build may
/// have some.
pub(super) async fn declare(runner: &RunnerShared, store: &Checked) -> Result<()> {
    let capabilities = store.capabilities();
    if runner.queues.iter().any(|served| !capabilities.keeps(&served.policy.flow)) {
        tracing::warn!(store = store.name(), "this store being drained does not keep all limits");
    }
    if !capabilities.flow {
        return Ok(());
    }
    let application = runner.queues.iter().filter(|served| !served.queue.is_reserved());
    let declare = async |served: &ServedQueue| {
        declare_queue(runner, store, &served.queue, served.policy.flow).await
    };
    try_join_all(application.map(declare)).await.map(drop)
}

/// Declares one queue's limits to a store that keeps limits.
pub(super) async fn declare_queue(
    runner: &RunnerShared,
    store: &Checked,
    queue: &QueueName,
    flow: Flow,
) -> Result<()> {
    let flow = declared(flow, store);
    let declaration = store.operate(Operation::DeclareFlow { queue, flow });
    let report = runner.call("declare limits", declaration).await?;
    if report.affected > 0 {
        tracing::info!(%queue, %flow, "the limits of the queue have changed, for all runners");
    }
    Ok(())
}

/// Returns the limits that this process declares to a store.
fn declared(mut flow: Flow, store: &Checked) -> Flow {
    flow.group_max_running = flow.group_max_running.filter(|_| store.capabilities().groups);
    flow
}

/// Tells this process once that a later declaration, of another one, counts in place of its own.
/// `told` has the declarations that it knows.
pub(super) fn tell_if_replaced(
    context: &StoreContext,
    stats: &QueueStats,
    told: &mut HashMap<QueueName, Flow>,
) {
    let StoreContext { runner, store, .. } = context;
    let Some(index) = runner.index_of.get(&stats.queue) else { return };
    if !store.capabilities().flow {
        return;
    }
    let (queue, own, latest) =
        (&stats.queue, declared(runner.queues[*index].policy.flow, store), stats.flow.declared);
    if own == latest {
        told.remove(queue);
    } else if told.insert(queue.clone(), latest) != Some(latest) {
        tracing::warn!(%queue, %own, %latest,
            "another process has declared other limits for the queue, which count for all \
             processes unless an operator has set some; give both the same limits in the handler's \
             attribute or the configuration, or set them by `dq limit`");
        runner.observers.notify(&Event::LimitsReplaced { queue, own: &own, latest: &latest });
    }
}

/// Refuses limits that the main store does not keep. A drained store runs its jobs without them.
pub(super) fn expect_supported(queue: &QueueName, flow: &Flow, store: &Checked) -> Result<()> {
    if store.capabilities().keeps(flow) {
        return Ok(());
    }
    let feature = format!("the limits of queue {queue} ({flow})");
    Err(Error::unsupported(store.name(), &feature).remedy(
        "remove `max_running`, `group_max_running` and `rate`; `concurrency` limits each runner by \
         itself",
    ))
}
