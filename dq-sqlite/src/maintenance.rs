//! Returns free pages to the file system while the store is idle.

use rusqlite::Connection;

/// Each page is moved under the write lock: a step takes a few milliseconds.
const PAGES_PER_STEP: u32 = 200;

const MIN_FREE_PAGES: i64 = 1_024;

/// Frees pages if more than a quarter of the file is free. Returns whether it freed any; then
/// another step may free more.
pub(crate) fn vacuum_step(conn: &Connection) -> rusqlite::Result<bool> {
    let before = free_pages(conn)?;
    let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0))?;
    if before < MIN_FREE_PAGES || before * 4 <= pages {
        return Ok(false);
    }
    let mut vacuum = conn.prepare(&format!("PRAGMA incremental_vacuum({PAGES_PER_STEP})"))?;
    let mut rows = vacuum.query([])?;
    // SQLite frees a page for each row that is read.
    while rows.next()?.is_some() {}
    // A file created without incremental vacuum never shrinks.
    Ok(free_pages(conn)? < before)
}

fn free_pages(conn: &Connection) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, "freelist_count", |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SqliteConfig;
    use crate::connection::{OpenMode, open_writer};

    #[test]
    fn an_emptied_file_shrinks_in_small_steps_until_few_pages_are_free() {
        let dir = tempfile::tempdir().unwrap();
        let conn =
            open_writer(&SqliteConfig::new(dir.path().join("jobs.db")), OpenMode::Create).unwrap();
        conn.execute_batch(
            "CREATE TABLE filler (x);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO filler SELECT zeroblob(4000) FROM n;
             DELETE FROM filler;",
        )
        .unwrap();
        let before = free_pages(&conn).unwrap();
        assert!(before > MIN_FREE_PAGES);
        assert!(vacuum_step(&conn).unwrap());
        assert_eq!(free_pages(&conn).unwrap(), before - i64::from(PAGES_PER_STEP));
        while vacuum_step(&conn).unwrap() {}
        assert!(free_pages(&conn).unwrap() <= MIN_FREE_PAGES);
    }
}
