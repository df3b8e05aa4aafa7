//! Creates and migrates the tables, and checks their version.
//!
//! Versions of this library live side by side: a deployment replaces its processes one after
//! another, and may be rolled back. So the `meta` table holds three numbers: the version of the
//! tables, the oldest version that may still write them (`min_writer`) and the oldest that may
//! still read them (`min_reader`). A migration that only adds what older versions can ignore (a
//! column with a default, a table, an index) leaves the minimums alone, and older processes go on. A
//! process that is below either minimum is refused when it connects. One that is running ends and
//! renews the leases that it holds, whatever the numbers are. Below `min_writer` it is refused all
//! other writes, and still reads; below `min_reader` it reads nothing either. So a migration that
//! older versions would misread raises both.
//!
//! The numbers are in a table of the backend and not in `user_version`, which belongs to the
//! application if the file is its own database.

use dq_core::ErrorKind;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior};

use crate::error::{StoreError, StoreResult};

/// Migrations, each from the previous version to the one with its number, counted from 1. One that
/// older versions cannot live with also raises `min_writer` or `min_reader`. The statements of a
/// released migration never change.
const MIGRATIONS: [&str; 1] = [include_str!("schema/1_tables.sql")];

/// The version of the tables that this version of the library creates.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// The tables of version 1, which every version has, without the prefix.
const TABLES: [&str; 10] =
    ["meta", "queue", "job", "due", "lease", "dead", "note", "ended", "pin", "runner"];

/// Application id of files that hold only the backend's tables, as shown by `file(1)`: "dqjb".
const APPLICATION_ID: i32 = 0x6471_6a62;

/// The numbers of the `meta` table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Versions {
    version: i64,
    min_writer: i64,
    min_reader: i64,
}

/// Creates or migrates the tables.
///
/// # Errors
/// `Incompatible` for foreign tables with the same names, and if this version of the library may not
/// read and write the tables any more.
pub(crate) fn ensure(conn: &mut Connection, prefix: &str) -> StoreResult<()> {
    migrate(conn, prefix, &MIGRATIONS)
}

fn migrate(conn: &mut Connection, prefix: &str, migrations: &[&str]) -> StoreResult<()> {
    let target = migrations.len() as i64;
    if supported_version(conn, prefix)? >= target {
        return Ok(());
    }
    // Another process may migrate at the same time, so the version is read again under the lock.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_empty(&tx)? {
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    let from = supported_version(&tx, prefix)?;
    if from >= target {
        return Ok(());
    }
    for (_, migration) in (1..).zip(migrations).skip_while(|(number, _)| *number <= from) {
        tx.execute_batch(&migration.replace("{p}", prefix))?;
    }
    tx.execute(&format!("UPDATE {prefix}meta SET version = ?1"), [target])?;
    tx.commit()?;
    if from > 0 {
        tracing::info!(from, to = target, "migrated the tables");
    }
    Ok(())
}

/// Whether the file has the tables.
///
/// # Errors
/// As of [`ensure`].
pub(crate) fn exists(conn: &Connection, prefix: &str) -> StoreResult<bool> {
    Ok(supported_version(conn, prefix)? > 0)
}

/// The version of the tables in the file, which this version of the library may use; 0 if there are
/// none.
fn supported_version(conn: &Connection, prefix: &str) -> StoreResult<i64> {
    let Some(Versions { version, min_writer, min_reader }) = versions(conn, prefix)? else {
        return Ok(0);
    };
    check_reader(min_reader)?;
    check_writer(min_writer)?;
    Ok(version)
}

/// `Incompatible` if this version of the library may not read the tables.
pub(crate) fn check_reader(min_reader: i64) -> StoreResult<()> {
    if VERSION >= min_reader { Ok(()) } else { Err(outdated("read", min_reader)) }
}

/// `Incompatible` if this version of the library may not write the tables.
pub(crate) fn check_writer(min_writer: i64) -> StoreResult<()> {
    if VERSION >= min_writer { Ok(()) } else { Err(outdated("write", min_writer)) }
}

fn outdated(verb: &str, minimum: i64) -> StoreError {
    StoreError::new(
        ErrorKind::Incompatible,
        format!(
            "only programs that know version {minimum} of the tables may {verb} them; this one \
             knows version {VERSION}"
        ),
        "a newer version of dq-sqlite has changed the tables: upgrade dq-sqlite in this program",
    )
}

/// Reads the numbers of the `meta` table; `None` if there are no tables.
fn versions(conn: &Connection, prefix: &str) -> StoreResult<Option<Versions>> {
    let names = TABLES.map(|table| format!("'{prefix}{table}'")).join(", ");
    let count = format!("SELECT count(*) FROM sqlite_schema WHERE name IN ({names})");
    let tables: i64 = conn.query_row(&count, [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(None);
    }
    let versions = conn.query_row(
        &format!("SELECT version, min_writer, min_reader FROM {prefix}meta WHERE one = 1"),
        [],
        |row| {
            let (version, min_writer, min_reader) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(Versions { version, min_writer, min_reader })
        },
    );
    match versions.optional() {
        Ok(Some(versions)) if tables == TABLES.len() as i64 => Ok(Some(versions)),
        // A table without these columns is SQLITE_ERROR, and a value of another type has no code.
        Err(error) if !matches!(error.sqlite_error_code(), None | Some(ErrorCode::Unknown)) => {
            Err(error.into())
        }
        _ => Err(StoreError::new(
            ErrorKind::Incompatible,
            format!("the file has tables named {prefix}… that dq-sqlite did not create"),
            "choose another `table_prefix`, or another file",
        )),
    }
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
        assert_eq!(supported_version(&conn, "dq_").unwrap(), 0);
        ensure(&mut conn, "dq_").unwrap();
        ensure(&mut conn, "dq_").unwrap();
        assert_eq!(supported_version(&conn, "dq_").unwrap(), VERSION);
        let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).unwrap();
        assert_eq!(id, APPLICATION_ID);
    }

    #[test]
    fn one_file_can_hold_two_prefixes() {
        let mut conn = Connection::open_in_memory().unwrap();
        ensure(&mut conn, "a_").unwrap();
        ensure(&mut conn, "b_").unwrap();
        assert_eq!(supported_version(&conn, "a_").unwrap(), VERSION);
    }

    #[test]
    fn a_migration_changes_a_file_that_exists_and_may_refuse_older_versions() {
        let mut conn = Connection::open_in_memory().unwrap();
        ensure(&mut conn, "dq_").unwrap();
        let addition = "ALTER TABLE {p}job ADD COLUMN later INTEGER";
        migrate(&mut conn, "dq_", &[MIGRATIONS[0], addition]).unwrap();
        conn.execute_batch("SELECT later FROM dq_job").unwrap();
        ensure(&mut conn, "dq_").unwrap();
        assert_eq!(supported_version(&conn, "dq_").unwrap(), 2);
        let change = "UPDATE {p}meta SET min_writer = 3";
        migrate(&mut conn, "dq_", &[MIGRATIONS[0], addition, change]).unwrap();
        let error = ensure(&mut conn, "dq_").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Incompatible);
        assert!(error.message().contains("version 3"), "{}", error.message());
    }

    #[test]
    fn foreign_tables_with_the_same_names_are_refused() {
        for table in ["dq_meta (version, min_writer, min_reader)", "dq_job (x)", "dq_runner (x)"] {
            let mut conn = Connection::open_in_memory().unwrap();
            conn.execute_batch(&format!("CREATE TABLE {table}")).unwrap();
            let error = ensure(&mut conn, "dq_").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Incompatible, "{table}");
        }
    }
}
