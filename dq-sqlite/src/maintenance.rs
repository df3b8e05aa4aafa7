//! Giving pages back to the file system when there is nothing else to do.

use rusqlite::Connection;

/// Pages per turn. Each is moved under the write lock, so a turn is kept to a few milliseconds.
const PAGES: u32 = 200;

/// Free pages below which it is not worth the writes.
const WORTHWHILE: i64 = 1_024;

/// Gives back some free pages while more than a quarter of the file is free. `true` if another
/// turn would help.
pub(crate) fn turn(conn: &Connection) -> rusqlite::Result<bool> {
    let before = free(conn)?;
    let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0))?;
    if before < WORTHWHILE || before * 4 <= pages {
        return Ok(false);
    }
    let mut vacuum = conn.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
    let mut rows = vacuum.query([])?;
    // One page per row: the work is done by asking for the rows.
    while rows.next()?.is_some() {}
    // In a file that was made without incremental vacuum nothing happens, and never will.
    Ok(free(conn)? < before)
}

fn free(conn: &Connection) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, "freelist_count", |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SqliteConfig;
    use crate::connection::open_writer;

    #[test]
    fn a_drained_file_shrinks_in_small_turns_and_then_rests() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open_writer(&SqliteConfig::new(dir.path().join("jobs.db"))).unwrap();
        conn.execute_batch(
            "CREATE TABLE ballast (x);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO ballast SELECT zeroblob(4000) FROM n;
             DELETE FROM ballast;",
        )
        .unwrap();
        let before = free(&conn).unwrap();
        assert!(before > WORTHWHILE);
        assert!(turn(&conn).unwrap());
        assert_eq!(free(&conn).unwrap(), before - i64::from(PAGES));
        while turn(&conn).unwrap() {}
        assert!(free(&conn).unwrap() <= WORTHWHILE);
    }
}
