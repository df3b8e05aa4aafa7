//! Connections, and the settings that make them durable.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dq_core::ErrorKind;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::config::{Durability, SqliteConfig};
use crate::error::{Failure, Outcome};
use crate::schema;

/// Pages of the log after which a commit copies them into the file. Fewer cost throughput, more
/// cost latency at the tail.
pub(crate) const CHECKPOINT_PAGES: u32 = 4_000;

/// Room for every statement, so that none is parsed twice.
const STATEMENTS: usize = 128;

const PAGE_BYTES: u32 = 4_096;

/// How often `journal_mode` is tried again while others use the file.
const RETRY: Duration = Duration::from_millis(5);

/// The one connection that writes: settings checked, tables up to date.
pub(crate) fn open_writer(config: &SqliteConfig) -> Outcome<Connection> {
    refuse_missing_directory(&config.path)?;
    let mut conn = open(config, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    if is_new(&conn)? {
        // Both count only before the first table is made.
        conn.pragma_update(None, "page_size", PAGE_BYTES)?;
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    use_write_ahead_log(&conn, config.busy_timeout)?;
    let synchronous = match config.durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    // Where fsync does not reach the disk (macOS) these make it; elsewhere they do nothing.
    conn.pragma_update(None, "fullfsync", true)?;
    conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    conn.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
    conn.pragma_update(None, "cache_size", -i64::from(config.cache_mib) * 1024)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    limit_size(&conn, config)?;
    schema::ensure(&mut conn, &config.table_prefix)?;
    refuse_read_only(&conn, config)?;
    Ok(conn)
}

/// A connection that only reads. It never copies the log into the file.
pub(crate) fn open_reader(config: &SqliteConfig) -> Outcome<Connection> {
    let conn = open(config, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    conn.pragma_update(None, "query_only", true)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "cache_size", -2 * 1024)?;
    Ok(conn)
}

fn open(config: &SqliteConfig, flags: OpenFlags) -> Outcome<Connection> {
    // No mutex in SQLite: each connection is used by one thread at a time.
    let conn = Connection::open_with_flags(&config.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // First of all, since every other setting may have to wait for others.
    conn.busy_timeout(config.busy_timeout)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

fn refuse_missing_directory(path: &Path) -> Outcome<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.is_dir() {
        return Err(Failure::new(
            ErrorKind::Config,
            format!("there is no directory {}", directory.display()),
            "make the directory, or correct `path`",
        ));
    }
    if path.is_dir() {
        return Err(Failure::new(
            ErrorKind::Config,
            "this is a directory, not a file",
            "give the path of a file in it",
        ));
    }
    Ok(())
}

/// Whether nothing has been stored in the file yet. This is the first time that the file is read.
fn is_new(conn: &Connection) -> Outcome<bool> {
    schema::is_empty(conn).map_err(|error| match error.sqlite_error_code() {
        // The file itself was opened, so it is those beside it that cannot be made.
        Some(ErrorCode::CannotOpen) => read_only("the files beside it cannot be made"),
        _ => error.into(),
    })
}

/// SQLite opens a file that it may not write for reading, without a word, and tells only whoever
/// writes; this writes nothing, but as a writer.
fn refuse_read_only(conn: &Connection, config: &SqliteConfig) -> Outcome<()> {
    // Somebody else who writes just now answers the question too, so there is no need to wait.
    conn.busy_timeout(Duration::ZERO)?;
    let answer = conn.execute_batch(&format!("DELETE FROM {}meta WHERE 0", config.table_prefix));
    conn.busy_timeout(config.busy_timeout)?;
    match answer {
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy) => Ok(()),
            Some(ErrorCode::ReadOnly) => Err(read_only("the file can be read but not written")),
            _ => Err(error.into()),
        },
        Ok(()) => Ok(()),
    }
}

fn read_only(what: &str) -> Failure {
    Failure::new(
        ErrorKind::ReadOnly,
        what,
        "give this process write access to the file and its directory",
    )
}

/// Without the log every reader would block the writer, and each commit cost more syncs. SQLite
/// answers with the mode it has; asking is not having.
fn use_write_ahead_log(conn: &Connection, patience: Duration) -> Outcome<()> {
    let began = Instant::now();
    let mode: String = loop {
        let answer = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0));
        match answer {
            // The change needs the file for itself and does not wait for it.
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && began.elapsed() < patience =>
            {
                std::thread::sleep(RETRY);
            }
            answer => break answer?,
        }
    };
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::Config,
        format!("the file cannot be switched to write-ahead logging; its journal mode is {mode:?}"),
        "put the file on a local disk: the log needs memory that processes of one host share",
    ))
}

fn limit_size(conn: &Connection, config: &SqliteConfig) -> Outcome<()> {
    let Some(limit) = config.size_limit_mib else {
        return Ok(());
    };
    // A file of the user's may have pages of another size.
    let page: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages = i64::from(limit) * 1024 * 1024 / page;
    conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    Ok(())
}

/// The log beside the file.
pub(crate) fn log_path(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pragma<T: rusqlite::types::FromSql>(conn: &Connection, name: &str) -> T {
        conn.pragma_query_value(None, name, |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_new_file_gets_every_setting() {
        let dir = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(dir.path().join("jobs.db"));
        let conn = open_writer(&config).unwrap();
        assert_eq!(pragma::<String>(&conn, "journal_mode"), "wal");
        assert_eq!(pragma::<i64>(&conn, "synchronous"), 2);
        assert_eq!(pragma::<i64>(&conn, "auto_vacuum"), 2);
        assert_eq!(pragma::<i64>(&conn, "wal_autocheckpoint"), i64::from(CHECKPOINT_PAGES));
        assert_eq!(pragma::<i64>(&conn, "busy_timeout"), 5_000);
    }

    #[test]
    fn relaxed_durability_is_a_setting_of_the_writer() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = SqliteConfig::new(dir.path().join("jobs.db"));
        config.durability = Durability::Relaxed;
        assert_eq!(pragma::<i64>(&open_writer(&config).unwrap(), "synchronous"), 1);
    }

    #[test]
    fn readers_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(dir.path().join("jobs.db"));
        let _writer = open_writer(&config).unwrap();
        let reader = open_reader(&config).unwrap();
        let failure = Failure::from(reader.execute("DELETE FROM dq_job", []).unwrap_err());
        assert_eq!(failure.kind, ErrorKind::ReadOnly);
    }
}
