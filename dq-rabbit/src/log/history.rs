//! Limits that the log holds, so that all replicas forget and refuse the same jobs.

use dq_core::Result;

use super::command::{Barrier, SetCapacity, SetHistory};
use super::shared::LogShared;
use super::state::replica::Replica;
use super::wire::HistoryLimits;

/// Reads the log to its end, and sets this process's limits if the log has others.
pub(super) async fn sync_limits(
    shared: &LogShared,
    limits: &HistoryLimits,
    operation: &'static str,
) -> Result<()> {
    let own = limits.clone();
    let capacity = shared.settings.capacity();
    let is_own = move |replica: &mut Replica, (), _| {
        let limits = replica.machine().history_limits();
        let mut changed = limits.clone();
        own.apply_to(&mut changed);
        (changed == *limits, replica.usage().capacity == Some(capacity))
    };
    let (is_own_history, is_own_capacity) = shared.call_at_open(operation, Barrier, is_own).await?;
    if !is_own_capacity {
        shared.call_at_open(operation, SetCapacity(capacity), |_, (), _| ()).await?;
    }
    if !is_own_history {
        let limits = SetHistory(limits.clone());
        shared.call_at_open(operation, limits, |_, (), _| ()).await?;
    }
    Ok(())
}
