//! The limits that the log holds, so that all replicas forget and refuse the same jobs.

use dq_core::Result;

use super::call::OPEN_TIMEOUTS;
use super::command::{Barrier, SetCapacity, SetHistory, TypedCommand};
use super::shared::LogShared;
use super::state::replica::Replica;
use crate::error::LostReply;

/// Reads the log to its end, and sets this process's limits if the log has others.
pub(super) async fn sync_limits(shared: &LogShared, operation: &'static str) -> Result<()> {
    let limits = shared.history_limits.clone();
    let capacity = shared.settings.capacity();
    let is_own = move |replica: &mut Replica| {
        let known = replica.machine().history_limits();
        let mut changed = known.clone();
        limits.apply_to(&mut changed);
        (changed == *known, replica.usage().capacity == Some(capacity))
    };
    let (is_own_history, is_own_capacity) = call(shared, operation, Barrier, is_own).await?;
    if !is_own_capacity {
        call(shared, operation, SetCapacity(capacity), |_| ()).await?;
    }
    if !is_own_history {
        call(shared, operation, SetHistory(shared.history_limits.clone()), |_| ()).await?;
    }
    Ok(())
}

async fn call<C: TypedCommand<Reply = ()>, T: Send + 'static>(
    shared: &LogShared,
    operation: &'static str,
    command: C,
    read: impl FnOnce(&mut Replica) -> T + Send + 'static,
) -> Result<T> {
    let lost_reply = LostReply::Unavailable;
    let read = |replica: &mut Replica, (), _| read(replica);
    shared.call_within(OPEN_TIMEOUTS, operation, lost_reply, command, read).await
}
