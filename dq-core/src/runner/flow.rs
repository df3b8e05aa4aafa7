//! Declares the limits of the runner's queues to a store, for all processes.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::shared::{RunnerShared, ServedQueue};
use crate::backend::{Backend, Checked, Operation};
use crate::error::{Error, Result};

/// Declares all queues' limits, also that there are none: the declaration of an older build may have some.
pub(super) async fn declare(runner: &RunnerShared, store: &Arc<Checked>) -> Result<()> {
    let capabilities = store.capabilities();
    if runner.queues.iter().any(|served| !capabilities.keeps(&served.policy.flow)) {
        tracing::warn!(store = store.name(), "this store being drained does not keep all limits");
    }
    if !capabilities.flow {
        return Ok(());
    }
    let application = runner.queues.iter().filter(|served| !served.queue.is_reserved());
    let declare = async |served: &ServedQueue| -> Result<()> {
        let (queue, mut flow) = (&served.queue, served.policy.flow);
        flow.group_max_running = flow.group_max_running.filter(|_| capabilities.groups);
        let declaration = store.operate(Operation::DeclareFlow { queue, flow });
        let report = runner.call("declare limits", declaration).await?;
        if report.affected > 0 {
            tracing::info!(%queue, %flow, "the limits of the queue have changed, for all runners");
        }
        Ok(())
    };
    try_join_all(application.map(declare)).await.map(drop)
}

/// Refuses limits that the main store does not keep. A drained store runs its jobs without them.
pub(super) fn expect_supported(queues: &[ServedQueue], store: &Checked) -> Result<()> {
    let capabilities = store.capabilities();
    match queues.iter().find(|served| !capabilities.keeps(&served.policy.flow)) {
        Some(ServedQueue { queue, policy, .. }) => {
            let feature = format!("the limits of queue {queue} ({})", policy.flow);
            Err(Error::unsupported(store.name(), &feature).remedy(
                "remove `max_running`, `group_max_running` and `rate`; `concurrency` limits each \
                 runner by itself",
            ))
        }
        None => Ok(()),
    }
}
