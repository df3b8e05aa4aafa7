//! State shared by the backend, the writer thread and the readers.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Clock, HistoryLimits, Listeners, QueueName};
use rusqlite::Connection;

use crate::config::SqliteConfig;
use crate::due_index::DueIndex;
use crate::error::StoreResult;
use crate::queue_directory::{QueueDirectory, QueueSet};
use crate::statements::Statements;
use crate::store_file::StoreFile;

#[derive(Debug)]
pub(crate) struct StoreShared {
    /// The path is absolute.
    pub(crate) config: SqliteConfig,
    pub(crate) statements: Statements,
    pub(crate) clock: Arc<dyn Clock>,
    /// Without a limit this process writes no history, because that makes a settlement about 1.2 to
    /// 1.4 times as long; it leaves other processes' history alone.
    pub(crate) history: HistoryLimits,
    pub(crate) listeners: Listeners,
    pub(crate) directory: Mutex<QueueDirectory>,
    /// The writer holds the lock while it commits.
    pub(crate) due_index: Mutex<DueIndex>,
    /// All other connections must open the same file and store.
    pub(crate) file: StoreFile,
}

impl StoreShared {
    pub(crate) fn find_queues<'a>(
        &self,
        conn: &Connection,
        queues: impl Iterator<Item = &'a QueueName>,
    ) -> StoreResult<QueueSet> {
        let mut directory = lock(&self.directory);
        directory.refresh(conn, &self.statements)?;
        Ok(directory.find(queues))
    }
}
