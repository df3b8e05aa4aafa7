//! Opens connections and sets their pragmas.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dq_core::ErrorKind;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::config::{Durability, SqliteConfig};
use crate::error::{StoreError, StoreResult};
use crate::schema;

/// Write-ahead log size, in pages, at which a commit copies its pages into the file. Fewer pages
/// lower throughput, more raise tail latency.
pub(crate) const CHECKPOINT_PAGES: u32 = 4_000;

/// More than there are statements, so that none is parsed twice.
const CACHED_STATEMENTS: usize = 192;

const PAGE_BYTES: u32 = 4_096;

const JOURNAL_MODE_RETRY: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// Creates file and tables if they do not exist; migrates the tables.
    Create,
    /// Requires file and tables; migrates the tables.
    Existing,
    /// This process had the store open before, so it uses the tables even if a newer library
    /// version has migrated them.
    Again,
}

pub(crate) fn open_writer(config: &SqliteConfig, mode: OpenMode) -> StoreResult<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, mode == OpenMode::Create);
    if mode == OpenMode::Existing && !config.path.exists() {
        return Err(no_store(
            "the file does not exist",
            "check the path; `dq serve`, or a program that connects, creates the file",
        ));
    }
    let mut conn = open(config, flags)?;
    let is_new = is_new(&conn)?;
    if mode == OpenMode::Existing && !schema::exists(&conn, &config.table_prefix)? {
        return Err(no_store(
            "the file has no tables of dq-sqlite with this `table_prefix`",
            "correct `path` and `table_prefix`: the store must exist already",
        ));
    }
    if mode == OpenMode::Create && is_new {
        // Both take effect only before the first table is created.
        conn.pragma_update(None, "page_size", PAGE_BYTES)?;
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    use_write_ahead_log(&conn, config.busy_timeout)?;
    let synchronous = match config.durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    // On macOS plain fsync does not reach the disk; elsewhere these have no effect.
    conn.pragma_update(None, "fullfsync", true)?;
    conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // SQLite cuts the log to this size after a reader kept it from being reset; `check` reports
    // only larger logs.
    let page_bytes: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let log_bytes = 2 * i64::from(CHECKPOINT_PAGES) * page_bytes;
    conn.pragma_update(None, "journal_size_limit", log_bytes)?;
    conn.pragma_update(None, "cache_size", -i64::from(config.cache_mib) * 1024)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    limit_size(&conn, config)?;
    if mode != OpenMode::Again {
        schema::ensure(&mut conn, &config.table_prefix)?;
    }
    refuse_read_only(&conn, config)?;
    Ok(conn)
}

fn no_store(message: &str, remedy: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Config, message, remedy)
}

/// Never checkpoints the log.
pub(crate) fn open_reader(config: &SqliteConfig) -> StoreResult<Connection> {
    let conn = open(config, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    conn.pragma_update(None, "query_only", true)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "cache_size", -2 * 1024)?;
    Ok(conn)
}

fn open(config: &SqliteConfig, flags: OpenFlags) -> StoreResult<Connection> {
    // SQLite's own mutex is not needed: one thread at a time uses a connection.
    let conn = Connection::open_with_flags(&config.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // First, because every other pragma may wait for a lock.
    conn.busy_timeout(config.busy_timeout)?;
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    keep_plans(&conn)?;
    Ok(conn)
}

/// A plan that may depend on bound values would be made again at each use: SQLite parses the text
/// again.
pub(crate) fn keep_plans(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Absolute, so that later changes to the working directory or a symbolic link do not lead to
/// another file. The file may not exist yet.
pub(crate) fn absolute_path(path: &Path) -> StoreResult<PathBuf> {
    if path.is_dir() {
        return Err(StoreError::new(
            ErrorKind::Config,
            "the path is a directory, not a file",
            "give the path of a file in it",
        ));
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.is_dir() {
        return Err(StoreError::new(
            ErrorKind::Config,
            format!("the directory {} does not exist", directory.display()),
            "create the directory, or correct `path`",
        ));
    }
    let absolute = match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = path.file_name().unwrap_or_default();
            directory.canonicalize().map(|directory| directory.join(name))
        }
        result => result,
    };
    absolute.map_err(|error| {
        StoreError::new(
            ErrorKind::Unavailable,
            format!("the path cannot be resolved: {error}"),
            "give this process access to the file and its directory",
        )
    })
}

fn is_new(conn: &Connection) -> StoreResult<bool> {
    schema::is_empty(conn).map_err(|error| match error.sqlite_error_code() {
        // The file itself was opened, so SQLite cannot create the -wal and -shm files.
        Some(ErrorCode::CannotOpen) => read_only("the -wal and -shm files cannot be created"),
        _ => error.into(),
    })
}

/// SQLite opens such a file read-only without an error and fails at the first write. So this takes
/// the write lock and changes nothing.
fn refuse_read_only(conn: &Connection, config: &SqliteConfig) -> StoreResult<()> {
    // If another connection holds the lock, the file is writable.
    conn.busy_timeout(Duration::ZERO)?;
    let result = conn.execute_batch(&format!("DELETE FROM {}meta WHERE 0", config.table_prefix));
    conn.busy_timeout(config.busy_timeout)?;
    match result {
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy) => Ok(()),
            Some(ErrorCode::ReadOnly) => Err(read_only("the file can be read but not written")),
            _ => Err(error.into()),
        },
        Ok(()) => Ok(()),
    }
}

fn read_only(message: &str) -> StoreError {
    StoreError::new(
        ErrorKind::ReadOnly,
        message,
        "give this process write access to the file and its directory",
    )
}

/// Without write-ahead logging readers block the writer and commits cost more syncs. SQLite replies
/// with the resulting mode, which may differ.
fn use_write_ahead_log(conn: &Connection, timeout: Duration) -> StoreResult<()> {
    let start = Instant::now();
    let mode: String = loop {
        let result = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0));
        match result {
            // The change needs an exclusive lock and does not wait for it.
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && start.elapsed() < timeout =>
            {
                std::thread::sleep(JOURNAL_MODE_RETRY);
            }
            result => break result?,
        }
    };
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::Config,
        format!("the file cannot be switched to write-ahead logging; its journal mode is {mode:?}"),
        "put the file on a local disk: the log needs shared memory",
    ))
}

fn limit_size(conn: &Connection, config: &SqliteConfig) -> StoreResult<()> {
    let Some(limit) = config.size_limit_mib else {
        return Ok(());
    };
    // A file created by the application may have another page size.
    let page_bytes: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages = i64::from(limit) * 1024 * 1024 / page_bytes;
    conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    Ok(())
}

/// Changes whenever another connection commits. Read from shared memory in a microsecond.
pub(crate) fn data_version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

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
    fn files_and_connections_get_every_setting() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = SqliteConfig::new(dir.path().join("jobs.db"));
        let conn = open_writer(&config, OpenMode::Create).unwrap();
        assert_eq!(pragma::<String>(&conn, "journal_mode"), "wal");
        assert_eq!(pragma::<i64>(&conn, "synchronous"), 2, "FULL");
        assert_eq!(pragma::<i64>(&conn, "auto_vacuum"), 2, "INCREMENTAL");
        assert_eq!(pragma::<i64>(&conn, "wal_autocheckpoint"), i64::from(CHECKPOINT_PAGES));
        assert_eq!(pragma::<i64>(&conn, "busy_timeout"), 5_000);
        let page_bytes: i64 = pragma(&conn, "page_size");
        let log_bytes = 2 * i64::from(CHECKPOINT_PAGES) * page_bytes;
        assert_eq!(pragma::<i64>(&conn, "journal_size_limit"), log_bytes);
        config.durability = Durability::Relaxed;
        let relaxed = open_writer(&config, OpenMode::Create).unwrap();
        assert_eq!(pragma::<i64>(&relaxed, "synchronous"), 1, "NORMAL");
    }

    #[test]
    fn a_relative_path_and_a_symbolic_link_become_the_path_of_the_file() {
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(absolute_path(Path::new("jobs.db")).unwrap(), here.join("jobs.db"));
        #[cfg(unix)]
        {
            let dir = tempfile::tempdir().unwrap();
            let [file, link] = ["jobs.db", "link.db"].map(|name| dir.path().join(name));
            std::fs::write(&file, "").unwrap();
            std::os::unix::fs::symlink(&file, &link).unwrap();
            assert_eq!(absolute_path(&link).unwrap(), file.canonicalize().unwrap());
        }
    }
}
