//! Detects other connections' commits and notifies listeners in this process.

use dq_core::QueueName;
use rusqlite::Connection;

use crate::connection::data_version;
use crate::error::StoreResult;
use crate::shared::StoreShared;

/// Uses `PRAGMA data_version`.
#[derive(Debug)]
pub(crate) struct OtherWriters {
    version: i64,
}

impl OtherWriters {
    pub(crate) fn observe(conn: &Connection) -> rusqlite::Result<Self> {
        Ok(Self { version: data_version(conn)? })
    }

    /// Commits by `conn` do not count.
    pub(crate) fn have_committed(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let version = data_version(conn)?;
        Ok(std::mem::replace(&mut self.version, version) != version)
    }
}

/// Sends each listener its queue's first due time: any queue may have changed.
pub(crate) fn notify_all(shared: &StoreShared, conn: &Connection) -> StoreResult<()> {
    let names: Vec<QueueName> = shared.listeners.queues();
    let queues = shared.find_queues(conn, names.iter())?;
    queues.for_each_waiting(conn, &shared.statements, |place, _, due| {
        shared.listeners.wake(&names[place], due);
    })
}
