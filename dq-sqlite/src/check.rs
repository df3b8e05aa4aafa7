//! What an operator should know about the file and the library.

use dq_core::{Error, ErrorKind, Finding, Result, Severity};

use crate::config::{Durability, SqliteConfig};
use crate::connection::{CHECKPOINT_PAGES, log_path};
use crate::error::Outcome;
use crate::reader::View;
use crate::row;

/// The first version of SQLite in which two connections that write and check-point at once cannot
/// damage the file.
const SAFE_VERSION: i32 = 3_051_003;

/// The first version that knows every statement of ours.
const OLDEST_VERSION: i32 = 3_035_000;

/// A log this many times larger than a check-point makes it is being held open by somebody.
const LOG_FACTOR: u64 = 4;

/// Refuses a library that would only fail later.
pub(crate) fn refuse_ancient_library(number: i32, version: &str) -> Result<()> {
    if number >= OLDEST_VERSION {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!("SQLite {version} is linked; at least 3.35.0 is needed"),
    )
    .remedy("use the `bundled` feature, or upgrade the system's SQLite")
    .operation("connect"))
}

/// The linked library's known trouble.
pub(crate) fn library(number: i32, version: &str) -> Option<Finding> {
    (number < SAFE_VERSION).then(|| Finding {
        severity: Severity::Error,
        code: "sqlite.wal-reset-bug",
        cause: format!(
            "SQLite {version} is linked; before 3.51.3 two connections that write at the same \
             moment can damage the file"
        ),
        remedy: "link SQLite 3.51.3 or newer (rusqlite 0.39 or newer with the `bundled` feature); \
                 until then let one process alone use the file"
            .to_owned(),
    })
}

/// What the settings imply.
pub(crate) fn settings(config: &SqliteConfig) -> Option<Finding> {
    (config.durability == Durability::Relaxed).then(|| Finding {
        severity: Severity::Info,
        code: "sqlite.relaxed-durability",
        cause: "a power cut or a crash of the system may take the last moments' jobs with it"
            .to_owned(),
        remedy: "set `durability = \"full\"` if that is not intended".to_owned(),
    })
}

/// A log that grows because it cannot be reused.
pub(crate) fn log(config: &SqliteConfig, page_bytes: u64) -> Option<Finding> {
    let bytes = std::fs::metadata(log_path(&config.path)).map_or(0, |log| log.len());
    let limit = LOG_FACTOR * u64::from(CHECKPOINT_PAGES) * page_bytes;
    (bytes > limit).then(|| Finding {
        severity: Severity::Warning,
        code: "sqlite.log-large",
        cause: format!(
            "the write-ahead log {} has {} MiB",
            log_path(&config.path).display(),
            bytes >> 20
        ),
        remedy: "some connection keeps a read transaction open; find it (a backup, a shell, an \
                 iteration that is never finished) and end it"
            .to_owned(),
    })
}

/// A store that cannot be looked at.
pub(crate) fn unreadable(error: &Error) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "sqlite.unreadable",
        cause: error.message().to_owned(),
        remedy: error.remedy_text().unwrap_or("see the log").to_owned(),
    }
}

/// A name that nobody can ask for.
fn bad_name(q: i64, why: &str) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "sqlite.queue-name",
        cause: format!("{why}; the jobs of this queue, number {q}, can neither run nor be listed"),
        remedy: format!(
            "correct `name` where `q` is {q} in the queue table; schedule through this library, or \
             in plain SQL through the view, which checks names"
        ),
    }
}

impl View<'_> {
    pub(crate) fn page_bytes(self) -> Outcome<u64> {
        let bytes: i64 = self.conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        Ok(bytes.unsigned_abs())
    }

    /// Queues whose names are none.
    pub(crate) fn bad_names(self) -> Outcome<Vec<Finding>> {
        let mut statement = self.conn.prepare_cached(&self.sql.queue_names)?;
        let names = statement.query_map([], |row| {
            let q: i64 = row.get(1)?;
            Ok(row::queue_name(row.get_ref(0)?).err().map(|why| bad_name(q, &why)))
        })?;
        Ok(names.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?)
    }

    /// A file that keeps its largest size for ever.
    pub(crate) fn never_shrinks(self) -> Outcome<Option<Finding>> {
        const INCREMENTAL: i64 = 2;
        let mode: i64 = self.conn.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
        Ok((mode != INCREMENTAL).then(|| Finding {
            severity: Severity::Info,
            code: "sqlite.never-shrinks",
            cause: "the file was made without incremental vacuum: it keeps its largest size"
                .to_owned(),
            remedy: "run `PRAGMA auto_vacuum = INCREMENTAL; VACUUM` in it once, with nothing else \
                     connected, or give the jobs a file of their own"
                .to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancient_libraries_are_refused() {
        let error = refuse_ancient_library(3_034_001, "3.34.1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(refuse_ancient_library(rusqlite::version_number(), "").is_ok());
    }

    #[test]
    fn old_libraries_are_an_error() {
        assert!(library(3_051_002, "3.51.2").is_some_and(|f| f.severity == Severity::Error));
        assert!(library(3_051_003, "3.51.3").is_none());
    }

    #[test]
    fn a_large_log_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(dir.path().join("jobs.db"));
        assert!(log(&config, 4_096).is_none());
        let file = std::fs::File::create(log_path(&config.path)).unwrap();
        file.set_len(65 << 20).unwrap();
        assert_eq!(log(&config, 4_096).map(|f| f.code), Some("sqlite.log-large"));
    }
}
