//! A pool of read-only connections: reads never wait for writes.

use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, HistoryLimits, Result, Timestamp};
use rusqlite::{Connection, OptionalExtension, Params, Row};
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

impl<'c> ReadTx<'c> {
    pub(crate) fn new(conn: &'c Connection, shared: &'c StoreShared) -> Self {
        let StoreShared { statements, history, clock, .. } = shared;
        Self { conn, statements, history, now: clock.now() }
    }

    pub(crate) fn one<T>(
        self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<T> {
        Ok(self.conn.prepare_cached(sql)?.query_row(params, read)?)
    }

    pub(crate) fn find<T>(
        self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Option<T>> {
        Ok(self.conn.prepare_cached(sql)?.query_row(params, read).optional()?)
    }

    pub(crate) fn all<T>(
        self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Vec<T>> {
        let mut statement = self.conn.prepare_cached(sql)?;
        Ok(statement.query_map(params, read)?.collect::<rusqlite::Result<_>>()?)
    }

    pub(crate) fn exists(self, sql: &str, params: impl Params) -> StoreResult<bool> {
        Ok(self.conn.prepare_cached(sql)?.exists(params)?)
    }
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
        self.with_connection(operation, |conn, shared| in_read_tx(conn, shared, query)).await
    }

    pub(crate) async fn with_connection<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Connection, &StoreShared) -> StoreResult<T> + Send + 'static,
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
            let value = work(&conn, &shared)?;
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
    shared.file.verify()?;
    let conn = open_reader(&shared.config)?;
    shared.file.verify_opened(&conn, &shared.statements)?;
    Ok(conn)
}

/// An open transaction prevents reuse of the write-ahead log.
pub(crate) fn in_read_tx<T>(
    conn: &Connection,
    shared: &StoreShared,
    query: impl FnOnce(ReadTx<'_>) -> StoreResult<T>,
) -> StoreResult<T> {
    shared.file.verify()?;
    let transaction = conn.unchecked_transaction()?;
    let min_reader =
        transaction.prepare_cached(&shared.statements.minimums)?.query_row([], |row| row.get(0))?;
    // A newer library version may have migrated the tables.
    schema::check_reader(min_reader)?;
    // Reads the time after the first statement, which takes the snapshot: nothing in it is newer.
    query(ReadTx::new(&transaction, shared))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::fixture::Fixture;

    #[tokio::test]
    async fn abandoned_reads_keep_their_permits_until_they_end() {
        const SIZE: u32 = 2;
        let fixture = Fixture::new().await;
        let pool = ReaderPool::new(Arc::clone(&fixture.backend.shared), SIZE);
        let reading = Arc::new(AtomicUsize::new(0));
        let (unblock, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        for _ in 0..3 * SIZE {
            let (reading, blocked) = (Arc::clone(&reading), Arc::clone(&blocked));
            let read = pool.read("test", move |_| {
                reading.fetch_add(1, Ordering::SeqCst);
                let _ = lock(&blocked).recv();
                Ok(())
            });
            let abandoned = tokio::time::timeout(Duration::from_millis(20), read).await;
            assert!(abandoned.is_err());
        }
        while reading.load(Ordering::SeqCst) < SIZE as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let close = pool.close();
        tokio::pin!(close);
        let closed = tokio::time::timeout(Duration::from_millis(50), close.as_mut()).await;
        assert!(closed.is_err(), "closed while reads were running");
        assert_eq!(reading.load(Ordering::SeqCst), SIZE as usize);
        drop(unblock);
        close.await;
    }
}
