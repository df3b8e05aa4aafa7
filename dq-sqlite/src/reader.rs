//! The pool of connections that only read, so that reads never wait for writes.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, HistoryLimits, Result, Timestamp};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::connection::open_reader;
use crate::error::{StoreError, StoreResult, closed};
use crate::schema;
use crate::shared::StoreShared;
use crate::statements::Statements;

/// A read transaction: one consistent snapshot of the store.
///
/// The tables may hold lapsed leases, which only a write transaction removes. Queries treat their
/// jobs as waiting, so that reads need no write: they succeed while the disk is full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadTx<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) statements: &'c Statements,
    pub(crate) history: &'c HistoryLimits,
    pub(crate) now: Timestamp,
}

/// A pool of read-only connections.
#[derive(Debug)]
pub(crate) struct ReaderPool {
    shared: Arc<StoreShared>,
    size: u32,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl ReaderPool {
    /// A pool of up to `size` connections, which are opened when they are needed.
    pub(crate) fn new(shared: Arc<StoreShared>, size: u32) -> Self {
        let permits = Arc::new(Semaphore::new(size as usize));
        Self { shared, size, permits, idle: Arc::default() }
    }

    /// Runs `query` in a read transaction on a blocking thread.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        query: impl FnOnce(ReadTx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> Result<T> {
        self.read_after(operation, |_| Ok(()), |tx, ()| query(tx)).await
    }

    /// Like [`Self::read`]; `query` also gets what `before` returns, which runs before the transaction.
    pub(crate) async fn read_after<T: Send + 'static, B>(
        &self,
        operation: &'static str,
        before: impl FnOnce(&StoreShared) -> StoreResult<B> + Send + 'static,
        query: impl FnOnce(ReadTx<'_>, B) -> StoreResult<T> + Send + 'static,
    ) -> Result<T> {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed(operation))?;
        let (shared, idle) = (Arc::clone(&self.shared), Arc::clone(&self.idle));
        let result = tokio::task::spawn_blocking(move || {
            // The permit is held until the read ends, even if the caller stops waiting: a blocking
            // thread cannot be cancelled.
            let _permit = permit;
            let conn = match lock(&idle).pop() {
                Some(conn) => conn,
                None => open_verified(&shared)?,
            };
            let before = before(&shared)?;
            let value = in_read_tx(&conn, &shared, |tx| query(tx, before))?;
            lock(&idle).push(conn);
            Ok::<_, StoreError>(value)
        });
        match result.await {
            Ok(result) => {
                result.map_err(|error| error.into_error(operation, &self.shared.config.path))
            }
            Err(error) => Err(Error::new(ErrorKind::Internal, "a read was aborted")
                .source(error)
                .operation(operation)),
        }
    }

    /// Waits for running reads and closes the connections.
    pub(crate) async fn close(&self) {
        // With all permits acquired no read is running.
        let all = self.permits.acquire_many(self.size).await;
        self.permits.close();
        lock(&self.idle).clear();
        drop(all);
    }
}

/// Opens a connection to the store that the writer has open.
pub(crate) fn open_verified(shared: &StoreShared) -> StoreResult<Connection> {
    // First, since SQLite's own message about a missing file does not say that it was deleted.
    shared.verify_file()?;
    let conn = open_reader(&shared.config)?;
    shared.verify_opened(&conn)?;
    Ok(conn)
}

/// Runs `query` in a short transaction: while one is open, the write-ahead log cannot be reused.
fn in_read_tx<T>(
    conn: &Connection,
    shared: &StoreShared,
    query: impl FnOnce(ReadTx<'_>) -> StoreResult<T>,
) -> StoreResult<T> {
    shared.verify_file()?;
    let transaction = conn.unchecked_transaction()?;
    let StoreShared { statements, history, .. } = shared;
    let min_reader =
        transaction.prepare_cached(&statements.minimums)?.query_row([], |row| row.get(0))?;
    // A newer version of the library may have migrated the tables since the file was opened.
    schema::check_reader(min_reader)?;
    // The time is read after the first statement, which takes the snapshot: nothing in it is newer.
    query(ReadTx { conn: &transaction, statements, history, now: shared.clock.now() })
}
