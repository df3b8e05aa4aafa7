//! A pool of read-only connections: reads never wait for writes.

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

/// A read transaction: one consistent snapshot.
///
/// It may contain expired leases, which only writes remove. Queries treat their jobs as waiting, so
/// reads succeed on a full disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadTx<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) statements: &'c Statements,
    pub(crate) history: &'c HistoryLimits,
    pub(crate) now: Timestamp,
}

#[derive(Debug)]
pub(crate) struct ReaderPool {
    shared: Arc<StoreShared>,
    size: u32,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl ReaderPool {
    /// Opens connections on demand.
    pub(crate) fn new(shared: Arc<StoreShared>, size: u32) -> Self {
        let permits = Arc::new(Semaphore::new(size as usize));
        Self { shared, size, permits, idle: Arc::default() }
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        query: impl FnOnce(ReadTx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> Result<T> {
        self.read_after(operation, |_| Ok(()), |tx, ()| query(tx)).await
    }

    /// `before` runs before the transaction and passes its result to `query`.
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
            // Held until the read ends: a blocking thread cannot be cancelled.
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

    pub(crate) async fn close(&self) {
        let all = self.permits.acquire_many(self.size).await;
        self.permits.close();
        lock(&self.idle).clear();
        drop(all);
    }
}

pub(crate) fn open_verified(shared: &StoreShared) -> StoreResult<Connection> {
    // First, because SQLite does not say that a missing file was deleted.
    shared.verify_file()?;
    let conn = open_reader(&shared.config)?;
    shared.verify_opened(&conn)?;
    Ok(conn)
}

/// An open transaction prevents reuse of the write-ahead log.
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
    // A newer library version may have migrated the tables.
    schema::check_reader(min_reader)?;
    // Read after the first statement, which takes the snapshot: nothing in it is newer.
    query(ReadTx { conn: &transaction, statements, history, now: shared.clock.now() })
}
