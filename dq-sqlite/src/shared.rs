//! State that the backend, the writer thread and the readers share.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use dq_core::config::Environment;
use dq_core::sync::lock;
use dq_core::{Clock, HistoryLimits, Listeners, QueueName};
use rusqlite::Connection;

use crate::config::SqliteConfig;
use crate::due_index::DueIndex;
use crate::error::StoreResult;
use crate::queue_directory::{QueueDirectory, QueueSet};
use crate::statements::Statements;
use crate::store_file::StoreFile;

/// Shared state of an open store.
#[derive(Debug)]
pub(crate) struct StoreShared {
    /// The settings; the path is absolute.
    pub(crate) config: SqliteConfig,
    pub(crate) statements: Statements,
    pub(crate) clock: Arc<dyn Clock>,
    /// How many ended jobs are remembered. Where none is set, this process writes none, since a
    /// settlement with a history takes about 1.2 to 1.4 times as long, and leaves those of others alone.
    pub(crate) history: HistoryLimits,
    /// Listeners of this process.
    pub(crate) listeners: Listeners,
    /// All queues of the store.
    directory: Mutex<QueueDirectory>,
    pub(crate) due_index: Mutex<DueIndex>,
    /// What was opened; all other connections must open the same.
    pub(crate) file: StoreFile,
}

impl StoreShared {
    pub(crate) fn new(
        config: SqliteConfig,
        statements: Statements,
        environment: Environment,
        file: StoreFile,
    ) -> Self {
        let listeners = Listeners::default();
        let (directory, due_index) = (Mutex::default(), Mutex::default());
        let Environment { clock, history, .. } = environment;
        Self { config, statements, clock, history, listeners, directory, due_index, file }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.config.path
    }

    /// The ids of those of these queues that exist.
    pub(crate) fn find_queues<'a>(
        &self,
        conn: &Connection,
        queues: impl Iterator<Item = &'a QueueName>,
    ) -> StoreResult<QueueSet> {
        let mut directory = lock(&self.directory);
        directory.refresh(conn, &self.statements)?;
        Ok(directory.find(queues))
    }

    /// The index of queues by their first jobs. The writer holds the lock while it commits.
    pub(crate) fn due_index(&self) -> MutexGuard<'_, DueIndex> {
        lock(&self.due_index)
    }

    /// Fails with `Unavailable` unless the path still leads to the file that was opened.
    pub(crate) fn verify_file(&self) -> StoreResult<()> {
        self.file.verify(self.path())
    }

    /// Fails with `Unavailable` unless this new connection has opened the same store.
    pub(crate) fn verify_opened(&self, conn: &Connection) -> StoreResult<()> {
        self.file.verify_opened(conn, &self.statements, self.path())
    }
}
