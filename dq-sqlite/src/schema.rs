//! The format of the tables: made, recognised, and brought up to date.
//!
//! The format's number lives in a table of ours and not in `user_version`, because the file may be
//! somebody else's with our tables beside theirs.

use dq_core::ErrorKind;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{Failure, Outcome};

/// Each step brings a file from the format before to the one with its number, counted from 1. A
/// step that was released is never changed.
const STEPS: [&str; 2] =
    [include_str!("schema/1_tables.sql"), include_str!("schema/2_schedule_view.sql")];

/// The format that this version writes.
pub(crate) const FORMAT: i64 = STEPS.len() as i64;

/// Marks files that hold nothing but our tables, for `file(1)` and the curious: "dqjb".
const APPLICATION_ID: i32 = 0x6471_6a62;

/// Makes the tables, or brings them up to date, or refuses what is not ours.
pub(crate) fn ensure(conn: &mut Connection, prefix: &str) -> Outcome<()> {
    if format(conn, prefix)? == FORMAT {
        return Ok(());
    }
    // Immediate, and the format read again: another process may be doing the same.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_empty(&tx)? {
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    let from = format(&tx, prefix)?;
    for (number, step) in (1..).zip(STEPS).skip_while(|(number, _)| *number <= from) {
        tx.execute_batch(&step.replace("{p}", prefix))?;
        tx.execute(&format!("UPDATE {prefix}meta SET format = ?1"), [number])?;
    }
    tx.commit()?;
    if from > 0 && from < FORMAT {
        tracing::info!(from, to = FORMAT, "brought the tables up to date");
    }
    Ok(())
}

/// The format of the file; 0 if our tables are absent.
fn format(conn: &Connection, prefix: &str) -> Outcome<i64> {
    let ours: i64 = conn.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE name IN (?1 || 'meta', ?1 || 'queue', \
         ?1 || 'job', ?1 || 'due', ?1 || 'lease', ?1 || 'dead')",
        [prefix],
        |row| row.get(0),
    )?;
    if ours == 0 {
        return Ok(0);
    }
    let format = conn
        .query_row(&format!("SELECT format FROM {prefix}meta WHERE one = 1"), [], |row| row.get(0))
        .optional();
    match format {
        Ok(Some(format)) if ours == 6 => accept(format),
        _ => Err(Failure::new(
            ErrorKind::Incompatible,
            format!("the file has tables whose names begin with {prefix:?} and that are not ours"),
            "choose another `table_prefix`, or another file",
        )),
    }
}

/// Refuses formats that this version does not know.
pub(crate) fn accept(format: i64) -> Outcome<i64> {
    if (1..=FORMAT).contains(&format) {
        return Ok(format);
    }
    Err(Failure::new(
        ErrorKind::Incompatible,
        format!("the tables have format {format}; this version knows 1 to {FORMAT}"),
        "a newer version of dq-sqlite has used this file: upgrade this program too",
    ))
}

/// Whether nothing has been stored in the file yet.
pub(crate) fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_made_once_and_recognised_afterwards() {
        let mut conn = Connection::open_in_memory().unwrap();
        assert_eq!(format(&conn, "dq_").unwrap(), 0);
        ensure(&mut conn, "dq_").unwrap();
        ensure(&mut conn, "dq_").unwrap();
        assert_eq!(format(&conn, "dq_").unwrap(), FORMAT);
        let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).unwrap();
        assert_eq!(id, APPLICATION_ID);
    }

    #[test]
    fn two_prefixes_live_in_one_file() {
        let mut conn = Connection::open_in_memory().unwrap();
        ensure(&mut conn, "a_").unwrap();
        ensure(&mut conn, "b_").unwrap();
        assert_eq!(format(&conn, "a_").unwrap(), FORMAT);
    }

    #[test]
    fn tables_of_others_under_our_names_are_refused() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE dq_job (x)").unwrap();
        assert_eq!(ensure(&mut conn, "dq_").unwrap_err().kind, ErrorKind::Incompatible);
    }
}
