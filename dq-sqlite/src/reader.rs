//! The pool of connections that only read, so that reads never wait for writes.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, Result, Timestamp};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::connection::open_reader;
use crate::error::{StoreError, StoreResult, closed};
use crate::shared::StoreShared;
use crate::statements::Statements;

/// Maximum number of connections that read at once.
const READERS: usize = 4;

/// A read transaction: one consistent snapshot of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadTx<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) statements: &'c Statements,
    pub(crate) now: Timestamp,
}

/// Result of a read.
#[derive(Debug)]
pub(crate) enum ReadResult<T> {
    Value(T),
    /// The query did not run: the tables hold a lapsed lease, whose job the writer must return to
    /// its queue first, since a reader cannot write.
    LapsedLease,
}

/// A pool of read-only connections.
#[derive(Debug)]
pub(crate) struct ReaderPool {
    shared: Arc<StoreShared>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl ReaderPool {
    pub(crate) fn new(shared: Arc<StoreShared>) -> Self {
        Self { shared, permits: Arc::new(Semaphore::new(READERS)), idle: Arc::default() }
    }

    /// Runs `query` in a read transaction on a blocking thread.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        query: impl FnOnce(ReadTx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> Result<ReadResult<T>> {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed(operation))?;
        let (shared, idle) = (Arc::clone(&self.shared), Arc::clone(&self.idle));
        let result = tokio::task::spawn_blocking(move || {
            // The permit is held until the read ends, even if the caller stops waiting: a blocking
            // thread cannot be cancelled.
            let _permit = permit;
            let conn = match lock(&idle).pop() {
                Some(conn) => conn,
                None => open_reader(&shared.config)?,
            };
            let value = in_read_tx(&conn, &shared, query)?;
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
        let all = self.permits.acquire_many(READERS as u32).await;
        self.permits.close();
        lock(&self.idle).clear();
        drop(all);
    }
}

/// Runs `query` in a short transaction: while one is open, the write-ahead log cannot be reused.
fn in_read_tx<T>(
    conn: &Connection,
    shared: &StoreShared,
    query: impl FnOnce(ReadTx<'_>) -> StoreResult<T>,
) -> StoreResult<ReadResult<T>> {
    let transaction = conn.unchecked_transaction()?;
    let statements = &shared.statements;
    let tx = ReadTx { conn: &transaction, statements, now: shared.clock.now() };
    let lapsed = tx.conn.prepare_cached(&statements.has_lapsed)?.exists([tx.now.as_millis()])?;
    if lapsed {
        return Ok(ReadResult::LapsedLease);
    }
    query(tx).map(ReadResult::Value)
}
