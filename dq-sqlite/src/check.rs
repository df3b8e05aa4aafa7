//! Findings about the SQLite library, the settings and the file.

use std::time::Duration;

use dq_core::{Error, ErrorKind, Finding, JobId, Result, Severity, Timestamp};
use rusqlite::OptionalExtension;

use crate::config::{Durability, SqliteConfig};
use crate::connection::{CHECKPOINT_PAGES, log_path};
use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::row;
use crate::schema;

/// SQLite 3.51.3. From then on, two connections that write and checkpoint at once cannot corrupt
/// the file.
const SAFE_VERSION: i32 = 3_051_003;

/// SQLite 3.35.0, the first version that supports all statements.
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
    (number < SAFE_VERSION).then(|| Finding {
        severity: Severity::Error,
        code: "sqlite.wal-reset-bug",
        cause: format!(
            "SQLite {version} is linked; before 3.51.3 two connections that write at the same \
             time can corrupt the file"
        ),
        remedy: "link SQLite 3.51.3 or newer (rusqlite 0.39 or newer with the `bundled` feature); \
                 until then let only one process use the file"
            .to_owned(),
    })
}

pub(crate) fn relaxed_durability(config: &SqliteConfig) -> Option<Finding> {
    (config.durability == Durability::Relaxed).then(|| Finding {
        severity: Severity::Info,
        code: "sqlite.relaxed-durability",
        cause: "power loss or a crash of the system may lose the last writes".to_owned(),
        remedy: "set `durability = \"full\"` if that is not intended".to_owned(),
    })
}

fn large_log(config: &SqliteConfig, page_bytes: u64) -> Option<Finding> {
    let bytes = std::fs::metadata(log_path(&config.path)).map_or(0, |log| log.len());
    let limit = LARGE_LOG_FACTOR * u64::from(CHECKPOINT_PAGES) * page_bytes;
    (bytes > limit).then(|| Finding {
        severity: Severity::Warning,
        code: "sqlite.log-large",
        cause: format!(
            "the write-ahead log {} has {} MiB",
            log_path(&config.path).display(),
            bytes >> 20
        ),
        remedy: "a connection keeps a read transaction open; find it (a backup, a shell, an \
                 unfinished iteration) and close it"
            .to_owned(),
    })
}

pub(crate) fn unreadable(error: &Error) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "sqlite.unreadable",
        cause: error.message().to_owned(),
        remedy: error.remedy_text().unwrap_or("see the log").to_owned(),
    }
}

/// `why` says what is wrong with the name.
fn invalid_queue_name(queue_id: i64, why: &str) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "sqlite.queue-name",
        cause: format!(
            "{why}; the jobs of this queue, with q = {queue_id}, can neither run nor be listed"
        ),
        remedy: format!(
            "correct `name` where `q` is {queue_id} in the queue table; schedule through this library, \
             or in plain SQL through the view, which validates names"
        ),
    }
}

impl ReadTx<'_> {
    pub(crate) fn findings(self, config: &SqliteConfig) -> StoreResult<Vec<Finding>> {
        let mut findings = self.invalid_queue_names()?;
        findings.extend(large_log(config, self.page_bytes()?));
        findings.extend(self.never_shrinks()?);
        findings.extend(self.orphaned_rows()?);
        findings.extend(self.quarantined_jobs()?);
        findings.extend(self.outdated()?);
        Ok(findings)
    }

    fn page_bytes(self) -> StoreResult<u64> {
        let bytes: i64 = self.conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        Ok(bytes.unsigned_abs())
    }

    fn invalid_queue_names(self) -> StoreResult<Vec<Finding>> {
        let mut statement = self.conn.prepare_cached(&self.statements.queue_names)?;
        let names = statement.query_map([], |row| {
            let queue_id: i64 = row.get(1)?;
            Ok(row::queue_name(row.get_ref(0)?).err().map(|why| invalid_queue_name(queue_id, &why)))
        })?;
        Ok(names.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?)
    }

    fn outdated(self) -> StoreResult<Option<Finding>> {
        let min_writer =
            self.conn.prepare_cached(&self.statements.minimums)?.query_row([], |row| row.get(1))?;
        Ok(schema::check_writer(min_writer).err().map(|error| Finding {
            severity: Severity::Error,
            code: "sqlite.outdated",
            cause: format!("{}; it only settles and renews the jobs that it runs", error.message()),
            remedy: error.remedy().to_owned(),
        }))
    }

    fn orphaned_rows(self) -> StoreResult<Vec<Finding>> {
        let count = |sql: &str| -> StoreResult<i64> {
            Ok(self.conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
        };
        // Counting is much cheaper than looking up each entry's job. The counts agree by chance if
        // as many jobs have lost their row as their entry.
        let (jobs, due, leases): (i64, i64, i64) = self
            .conn
            .prepare_cached(&self.statements.count_all)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        if jobs == due + leases {
            return Ok(Vec::new());
        }
        let waiting = count(&self.statements.count_orphaned_due)?;
        let running = count(&self.statements.count_orphaned_leases)?;
        let stuck = count(&self.statements.count_stuck_jobs)?;
        let orphaned = (waiting + running > 0).then(|| Finding {
            severity: Severity::Warning,
            code: "sqlite.orphaned-rows",
            cause: format!(
                "another program has deleted rows of the job table: the entries of {waiting} \
                 waiting and {running} running jobs are left"
            ),
            remedy:
                "cancel, purge or remove jobs through this library; the entries are counted as \
                     jobs until they are due and dropped"
                    .to_owned(),
        });
        let stuck = (stuck > 0).then(|| Finding {
            severity: Severity::Warning,
            code: "sqlite.stuck-jobs",
            cause: format!(
                "{stuck} jobs never run: another program has deleted their rows of the due or the \
                 lease table"
            ),
            remedy: format!(
                "run `{}` in the file; a job also waits again if it is rescheduled or its key is \
                 scheduled",
                self.statements.free_stuck_jobs
            ),
        });
        Ok(orphaned.into_iter().chain(stuck).collect())
    }

    /// Runners report a finding once, so this text changes only with another such job.
    fn quarantined_jobs(self) -> StoreResult<Option<Finding>> {
        let yesterday = self.now - Duration::from_secs(86_400);
        let last: Option<(Vec<u8>, i64)> = self
            .conn
            .prepare_cached(&self.statements.last_quarantined)?
            .query_row([yesterday.as_millis()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(last.map(|(id, died)| {
            let id = id.try_into().map_or("without a valid id".to_owned(), |bytes| {
                JobId::from_bytes(bytes).to_string()
            });
            Finding {
                severity: Severity::Warning,
                code: "sqlite.quarantined",
                cause: format!(
                    "job {id} could not be read at {}, and is dead: another program has written or \
                     changed its row",
                    Timestamp::from_millis(died)
                ),
                remedy:
                    "find that program; dead jobs of the kind `quarantined` have the reason and \
                         their payload"
                        .to_owned(),
            }
        }))
    }

    fn never_shrinks(self) -> StoreResult<Option<Finding>> {
        const INCREMENTAL: i64 = 2;
        let mode: i64 = self.conn.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
        Ok((mode != INCREMENTAL).then(|| Finding {
            severity: Severity::Info,
            code: "sqlite.never-shrinks",
            cause: "the file was created without incremental vacuum: it never shrinks".to_owned(),
            remedy: "run `PRAGMA auto_vacuum = INCREMENTAL; VACUUM` in it once, with nothing else \
                     connected, or use a separate file for the jobs"
                .to_owned(),
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
