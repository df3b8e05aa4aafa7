//! Tells whether a transaction of the application is in the backend's file.
//!
//! The application has a connection of its own. If it has opened a copy of the file, or the file
//! that was at the path before a backup was restored, its transaction finds the id of this store,
//! and commits jobs that nobody runs. SQLite does not say which file a connection has open, so the
//! probe looks at what a transaction does to its file: it holds the write lock, and nothing is
//! committed until it ends.

use std::sync::Mutex;

use dq_core::sync::lock;
use rusqlite::{Connection, ErrorCode, Transaction};

use crate::connection;
use crate::error::StoreResult;
use crate::shared::StoreShared;
use crate::statements::Statements;

/// A connection to the backend's file, opened when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct FileProbe {
    conn: Mutex<Option<Connection>>,
}

impl FileProbe {
    /// Whether a transaction is in the file that the backend has open. Takes the write lock for the
    /// transaction.
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
        // The lock may be that of a third connection, which writes to the backend's file all the
        // time. The counters then differ. This transaction may have stored jobs already.
        let (seq, token) = counters(conn, &shared.statements)?;
        let (own_seq, own_token) = counters(transaction, &shared.statements)?;
        Ok(own_seq >= seq && own_token == token)
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        drop(lock(&self.conn).take());
    }
}

/// The last `seq` and token of the store.
fn counters(conn: &Connection, statements: &Statements) -> StoreResult<(i64, i64)> {
    let mut counters = conn.prepare_cached(&statements.counters)?;
    Ok(counters.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?)
}
