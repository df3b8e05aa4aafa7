//! Declares the limits of the runner's queues to a store, for all processes.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::shared::{RunnerShared, ServedQueue};
use crate::backend::{Backend, Checked, Operation};
use crate::error::{Error, Result};

/// Declares all queues' limits, also that there are none: the declaration of an older build may have some.
pub(super) async fn declare(runner: &RunnerShared, store: &Arc<Checked>) -> Result<()> {
    if !store.capabilities().flow {
        if runner.queues.iter().any(|served| served.policy.flow.is_limited()) {
            tracing::warn!(store = store.name(), "this store being drained keeps no limits");
        }
        return Ok(());
    }
    let application = runner.queues.iter().filter(|served| !served.queue.is_reserved());
    let declare = async |served: &ServedQueue| -> Result<()> {
        let (queue, flow) = (&served.queue, served.policy.flow);
        let declaration = store.operate(Operation::DeclareFlow { queue, flow });
        let report = runner.call("declare limits", declaration).await?;
        if report.affected > 0 {
            tracing::info!(%queue, %flow, "the limits of the queue have changed, for all runners");
        }
        Ok(())
    };
    try_join_all(application.map(declare)).await.map(drop)
}

/// Refuses limits if the main store keeps none. A drained store without them runs its jobs unlimited.
pub(super) fn expect_supported(queues: &[ServedQueue], store: &Checked) -> Result<()> {
    let limited = queues.iter().find(|served| served.policy.flow.is_limited());
    match limited {
        Some(served) if !store.capabilities().flow => {
            let feature = format!("limits for all processes, which queue {} has", served.queue);
            Err(Error::unsupported(store.name(), &feature).remedy(
                "remove `max_running`, `group_max_running` and `rate`; `concurrency` limits each \
                 runner by itself",
            ))
        }
        _ => Ok(()),
    }
}
