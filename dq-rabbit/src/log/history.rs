//! The limits that the log holds, so that all replicas forget and refuse the same jobs.

use dq_core::Result;

use super::call::OPEN_TIMEOUTS;
use super::shared::LogShared;
use super::state::replica::Replica;
use super::wire::Command;
use crate::error::LostReply;

/// Reads the log to its end, and sets this process's limits if the log has others.
pub(super) async fn sync_limits(shared: &LogShared, operation: &'static str) -> Result<()> {
    let limits = shared.history_limits.clone();
    let own_capacity = shared.capacity();
    let missing = move |replica: &mut Replica| {
        let mut commands = Vec::new();
        if replica.usage().capacity != Some(own_capacity) {
            commands.push(Command::SetCapacity(own_capacity));
        }
        let known = replica.machine().history_limits();
        let mut changed = known.clone();
        limits.apply_to(&mut changed);
        if changed != *known {
            commands.push(Command::SetHistory(limits));
        }
        commands
    };
    for command in call(shared, operation, Command::Barrier, missing).await? {
        call(shared, operation, command, |_| ()).await?;
    }
    Ok(())
}

async fn call<T: Send + 'static>(
    shared: &LogShared,
    operation: &'static str,
    command: Command,
    read: impl FnOnce(&mut Replica) -> T + Send + 'static,
) -> Result<T> {
    let read = |replica: &mut Replica, (), _| read(replica);
    shared.call_within(OPEN_TIMEOUTS, operation, LostReply::Unavailable, command, read).await
}
