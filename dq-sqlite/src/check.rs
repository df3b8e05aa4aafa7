//! Findings about the SQLite library, the settings and the file.

use std::time::Duration;

use dq_core::{Error, ErrorKind, Finding, JobId, Result, Severity, Timestamp};

use crate::config::SqliteConfig;
use crate::connection::{CHECKPOINT_PAGES, log_path};
use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::row;
use crate::schema;

/// SQLite 3.51.3. From then on, two connections that write and checkpoint at once cannot corrupt
/// the file.
const SAFE_VERSION: i32 = 3_051_003;

const MIN_VERSION: i32 = 3_035_000;

/// Relative to its checkpoint size. A larger log means that a reader keeps it from being reset.
const LARGE_LOG_FACTOR: u64 = 4;

pub(crate) fn refuse_old_library(number: i32, version: &str) -> Result<()> {
    if number >= MIN_VERSION {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!("SQLite {version} is linked; at least 3.35.0 is needed"),
    )
    .remedy("use the `bundled` feature, or upgrade the system's SQLite")
    .operation("connect"))
}

pub(crate) fn corruption_bug(number: i32, version: &str) -> Option<Finding> {
    (number < SAFE_VERSION).then(|| {
        Finding::new(
            Severity::Error,
            "sqlite.wal-reset-bug",
            format!(
                "SQLite {version} is linked; before 3.51.3 two connections that write at the same \
                 time can corrupt the file"
            ),
            "link SQLite 3.51.3 or newer (rusqlite 0.39 or newer with the `bundled` feature); \
             until then let only one process use the file",
        )
    })
}

fn large_log(config: &SqliteConfig, page_bytes: u64) -> Option<Finding> {
    let log = log_path(&config.path);
    let bytes = std::fs::metadata(&log).map_or(0, |log| log.len());
    let limit = LARGE_LOG_FACTOR * u64::from(CHECKPOINT_PAGES) * page_bytes;
    (bytes > limit).then(|| {
        Finding::new(
            Severity::Warning,
            "sqlite.log-large",
            format!("the write-ahead log {} has {} MiB", log.display(), bytes >> 20),
            "a connection keeps a read transaction open; find it (a backup, a shell, an \
             unfinished iteration) and close it",
        )
    })
}

pub(crate) fn unreadable(error: &Error) -> Finding {
    let remedy = error.remedy_text().unwrap_or("see the log");
    Finding::new(Severity::Error, "sqlite.unreadable", error.message(), remedy)
}

fn invalid_queue_name(queue_id: i64, why: &str) -> Finding {
    Finding::new(
        Severity::Error,
        "sqlite.queue-name",
        format!(
            "{why}; the jobs of this queue, with q = {queue_id}, can neither run nor be listed"
        ),
        format!(
            "correct `name` where `q` is {queue_id} in the queue table, and restart the programs that \
             use the file; schedule through this library, or in plain SQL through the view, which \
             validates names"
        ),
    )
}

impl ReadTx<'_> {
    pub(crate) fn findings(self, config: &SqliteConfig) -> StoreResult<Vec<Finding>> {
        let mut findings = self.invalid_queue_names()?;
        let page_bytes: i64 = self.conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        findings.extend(large_log(config, page_bytes.unsigned_abs()));
        findings.extend(self.quarantined_jobs()?);
        findings.extend(self.outdated()?);
        Ok(findings)
    }

    fn invalid_queue_names(self) -> StoreResult<Vec<Finding>> {
        let findings = self.all(&self.statements.queue_names, [], |row| {
            let queue_id: i64 = row.get(1)?;
            Ok(row::queue_name(row.get_ref(0)?).err().map(|why| invalid_queue_name(queue_id, &why)))
        })?;
        Ok(findings.into_iter().flatten().collect())
    }

    fn outdated(self) -> StoreResult<Option<Finding>> {
        let min_writer = self.one(&self.statements.minimums, [], |row| row.get(1))?;
        Ok(schema::check_writer(min_writer).err().map(|error| {
            let cause =
                format!("{}; it only settles and renews the jobs that it runs", error.message);
            Finding::new(Severity::Error, "sqlite.outdated", cause, error.remedy)
        }))
    }

    /// Runners report a finding once, so this text changes only with another such job.
    fn quarantined_jobs(self) -> StoreResult<Option<Finding>> {
        let yesterday = self.now - Duration::from_secs(86_400);
        let last: Option<(Vec<u8>, i64)> =
            self.find(&self.statements.last_quarantined, [yesterday.as_millis()], |row| {
                row.try_into()
            })?;
        Ok(last.map(|(id, died)| {
            let id = id.try_into().map_or("without a valid id".to_owned(), |bytes| {
                JobId::from_bytes(bytes).to_string()
            });
            Finding::new(
                Severity::Warning,
                "sqlite.quarantined",
                format!(
                    "job {id} could not be read at {}, and is dead: another program has written or \
                     changed its row",
                    Timestamp::from_millis(died)
                ),
                "find that program; dead jobs of the kind `quarantined` have the reason and their \
                 payload",
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_older_than_the_minimum_are_refused() {
        let error = refuse_old_library(3_034_001, "3.34.1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(refuse_old_library(rusqlite::version_number(), "").is_ok());
    }

    #[test]
    fn libraries_with_the_corruption_bug_are_an_error() {
        assert!(corruption_bug(3_051_002, "3.51.2").is_some_and(|f| f.severity == Severity::Error));
        assert!(corruption_bug(3_051_003, "3.51.3").is_none());
    }

    #[test]
    fn a_large_log_is_reported_as_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(dir.path().join("jobs.db"));
        assert!(large_log(&config, 4_096).is_none());
        let file = std::fs::File::create(log_path(&config.path)).unwrap();
        // The limit is 4 × 4,000 pages of 4,096 bytes: 62.5 MiB.
        file.set_len(65 << 20).unwrap();
        assert_eq!(large_log(&config, 4_096).map(|f| f.code), Some("sqlite.log-large"));
    }
}
