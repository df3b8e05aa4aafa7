//! Creates and migrates the tables, and checks their version.
//!
//! Library versions run side by side: a deployment replaces processes one by one and may be rolled
//! back. So the `meta` table holds the table version, the oldest version that may still write
//! (`min_writer`) and the oldest that may still read (`min_reader`). A migration that older
//! versions can ignore (a column with a default, a table, an index) leaves the minimums alone. A
//! process below either minimum is refused when it connects. A running process always ends and
//! renews its leases. Below `min_writer` it otherwise only reads; below `min_reader` it does not
//! even read. A migration that older versions would misread therefore raises both.
//!
//! `user_version` is not used because it belongs to the application if the file is its database.

use dq_core::ErrorKind;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior};

use crate::error::{StoreError, StoreResult};

/// A migration that older versions cannot live with also raises `min_writer` or `min_reader`. A
/// released migration never changes.
const MIGRATIONS: [&str; 2] =
    [include_str!("schema/1_tables.sql"), include_str!("schema/2_flow.sql")];

pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

fn tables() -> impl Iterator<Item = &'static str> {
    let create = |line: &'static str| line.strip_prefix("CREATE TABLE {p}")?.strip_suffix(" (");
    MIGRATIONS[0].lines().filter_map(create)
}

/// Marks files with only the backend's tables, as shown by `file(1)`: "dqjb".
const APPLICATION_ID: i32 = 0x6471_6a62;

/// Creates or migrates the tables. `Incompatible` for foreign tables with the same names, or if
/// this library version may no longer read and write the tables.
pub(crate) fn ensure(conn: &mut Connection, prefix: &str) -> StoreResult<()> {
    migrate(conn, prefix, &MIGRATIONS)
}

fn migrate(conn: &mut Connection, prefix: &str, migrations: &[&str]) -> StoreResult<()> {
    let target = migrations.len() as i64;
    if supported_version(conn, prefix)? >= target {
        return Ok(());
    }
    // Read again under the lock: another process may migrate at the same time.
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

pub(crate) fn exists(conn: &Connection, prefix: &str) -> StoreResult<bool> {
    Ok(supported_version(conn, prefix)? > 0)
}

/// Returns 0 without tables.
fn supported_version(conn: &Connection, prefix: &str) -> StoreResult<i64> {
    let names: Vec<String> = tables().map(|table| format!("'{prefix}{table}'")).collect();
    let found = format!("SELECT count(*) FROM sqlite_schema WHERE name IN ({})", names.join(", "));
    let found: i64 = conn.query_row(&found, [], |row| row.get(0))?;
    if found == 0 {
        return Ok(0);
    }
    let versions = conn.query_row(
        &format!("SELECT version, min_writer, min_reader FROM {prefix}meta WHERE one = 1"),
        [],
        |row| row.try_into(),
    );
    match versions.optional() {
        Ok(Some((version, min_writer, min_reader))) if found == names.len() as i64 => {
            check_reader(min_reader)?;
            check_writer(min_writer)?;
            Ok(version)
        }
        // A missing column is SQLITE_ERROR; a value with another type has no code.
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

pub(crate) fn check_reader(min_reader: i64) -> StoreResult<()> {
    if VERSION >= min_reader { Ok(()) } else { Err(outdated("read", min_reader)) }
}

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
    fn a_migration_changes_a_file_that_exists_and_may_refuse_older_versions() {
        let mut conn = Connection::open_in_memory().unwrap();
        ensure(&mut conn, "dq_").unwrap();
        let addition = "ALTER TABLE {p}job ADD COLUMN later INTEGER";
        migrate(&mut conn, "dq_", &[&MIGRATIONS[..], &[addition]].concat()).unwrap();
        conn.execute_batch("SELECT later FROM dq_job").unwrap();
        ensure(&mut conn, "dq_").unwrap();
        assert_eq!(supported_version(&conn, "dq_").unwrap(), VERSION + 1);
        let change = "UPDATE {p}meta SET min_writer = 4";
        migrate(&mut conn, "dq_", &[&MIGRATIONS[..], &[addition, change]].concat()).unwrap();
        let error = ensure(&mut conn, "dq_").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Incompatible);
        assert!(error.message.contains("version 4"), "{}", error.message);
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
