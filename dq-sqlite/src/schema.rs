//! Creates and migrates the tables, and checks their format.
//!
//! The number of the format is stored in a table of the backend and not in `user_version`, which
//! belongs to the application if the file is its own database.

use dq_core::ErrorKind;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{StoreError, StoreResult};

/// Migrations, each from the previous format to the one with its number, counted from 1. The
/// statements of a released migration never change.
const MIGRATIONS: [&str; 2] =
    [include_str!("schema/1_tables.sql"), include_str!("schema/2_schedule_view.sql")];

/// Number of tables that the backend creates.
const TABLES: i64 = 6;

/// The format that this version writes.
pub(crate) const FORMAT: i64 = MIGRATIONS.len() as i64;

/// Application id of files that hold only the backend's tables, as shown by `file(1)`: "dqjb".
const APPLICATION_ID: i32 = 0x6471_6a62;

/// Creates or migrates the tables.
///
/// # Errors
/// `Incompatible` for foreign tables with the same names and for a newer format.
pub(crate) fn ensure(conn: &mut Connection, prefix: &str) -> StoreResult<()> {
    if format(conn, prefix)? == FORMAT {
        return Ok(());
    }
    // Another process may migrate at the same time, so the format is read again under the lock.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_empty(&tx)? {
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    let from = format(&tx, prefix)?;
    for (number, migration) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= from) {
        tx.execute_batch(&migration.replace("{p}", prefix))?;
        tx.execute(&format!("UPDATE {prefix}meta SET format = ?1"), [number])?;
    }
    tx.commit()?;
    if from > 0 && from < FORMAT {
        tracing::info!(from, to = FORMAT, "migrated the tables");
    }
    Ok(())
}

/// The format of the tables in the file; 0 if there are none.
fn format(conn: &Connection, prefix: &str) -> StoreResult<i64> {
    let tables: i64 = conn.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE name IN (?1 || 'meta', ?1 || 'queue', \
         ?1 || 'job', ?1 || 'due', ?1 || 'lease', ?1 || 'dead')",
        [prefix],
        |row| row.get(0),
    )?;
    if tables == 0 {
        return Ok(0);
    }
    let format = conn
        .query_row(&format!("SELECT format FROM {prefix}meta WHERE one = 1"), [], |row| row.get(0))
        .optional();
    match format {
        Ok(Some(format)) if tables == TABLES => check_format(format),
        _ => Err(StoreError::new(
            ErrorKind::Incompatible,
            format!("the file has tables named {prefix}… that dq-sqlite did not create"),
            "choose another `table_prefix`, or another file",
        )),
    }
}

/// Returns the format, or `Incompatible` if this version does not support it.
pub(crate) fn check_format(format: i64) -> StoreResult<i64> {
    if (1..=FORMAT).contains(&format) {
        return Ok(format);
    }
    Err(StoreError::new(
        ErrorKind::Incompatible,
        format!("the tables have format {format}; this version supports 1 to {FORMAT}"),
        "a newer version of dq-sqlite has used this file: upgrade dq-sqlite in this program",
    ))
}

/// Whether the database has no tables yet.
pub(crate) fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_created_once_and_recognised_afterwards() {
        let mut conn = Connection::open_in_memory().unwrap();
        assert_eq!(format(&conn, "dq_").unwrap(), 0);
        ensure(&mut conn, "dq_").unwrap();
        ensure(&mut conn, "dq_").unwrap();
        assert_eq!(format(&conn, "dq_").unwrap(), FORMAT);
        let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).unwrap();
        assert_eq!(id, APPLICATION_ID);
    }

    #[test]
    fn one_file_can_hold_two_prefixes() {
        let mut conn = Connection::open_in_memory().unwrap();
        ensure(&mut conn, "a_").unwrap();
        ensure(&mut conn, "b_").unwrap();
        assert_eq!(format(&conn, "a_").unwrap(), FORMAT);
    }

    #[test]
    fn foreign_tables_with_the_same_names_are_refused() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE dq_job (x)").unwrap();
        assert_eq!(ensure(&mut conn, "dq_").unwrap_err().kind, ErrorKind::Incompatible);
    }
}
