//! Tells whether the application's transaction is in the backend's file.
//!
//! The application has its own connection. It may have opened a copy, or the file from before a
//! backup was restored: its transaction then finds the same store id, but nobody runs its jobs.
//! SQLite does not say which file a connection has open, so the probe looks at the write lock: an
//! open transaction holds it, and commits nothing until it ends.

use std::sync::Mutex;

use dq_core::sync::lock;
use rusqlite::{Connection, ErrorCode, Transaction};

use crate::connection;
use crate::error::StoreResult;
use crate::shared::StoreShared;
use crate::statements::Statements;

/// Opened on demand.
#[derive(Debug, Default)]
pub(crate) struct FileProbe {
    conn: Mutex<Option<Connection>>,
}

impl FileProbe {
    /// Takes the write lock for the transaction.
    pub(crate) fn is_same_file(
        &self,
        shared: &StoreShared,
        transaction: &Transaction<'_>,
    ) -> StoreResult<bool> {
        transaction.prepare_cached(&shared.statements.take_write_lock)?.execute([])?;
        let mut probe = lock(&self.conn);
        let conn = match &mut *probe {
            Some(conn) => conn,
            closed => {
                let conn = connection::open_probe(&shared.config)?;
                shared.verify_opened(&conn)?;
                closed.insert(conn)
            }
        };
        match conn.execute_batch("BEGIN IMMEDIATE") {
            Ok(()) => {
                conn.execute_batch("ROLLBACK")?;
                return Ok(false);
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
            Err(error) => return Err(error.into()),
        }
        // A third connection that writes all the time may hold the lock; the counters then differ.
        // This transaction may have stored jobs already.
        let (seq, token) = counters(conn, &shared.statements)?;
        let (own_seq, own_token) = counters(transaction, &shared.statements)?;
        Ok(own_seq >= seq && own_token == token)
    }

    pub(crate) fn close(&self) {
        drop(lock(&self.conn).take());
    }
}

fn counters(conn: &Connection, statements: &Statements) -> StoreResult<(i64, i64)> {
    let mut counters = conn.prepare_cached(&statements.counters)?;
    Ok(counters.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?)
}
