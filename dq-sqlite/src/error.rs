//! What SQLite says, in the framework's words: what failed, where, and what to do.

use std::fmt;
use std::path::Path;

use dq_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

pub(crate) type Outcome<T> = std::result::Result<T, Failure>;

/// A failure inside the store. Unlike [`Error`] it can be cloned, since one failed transaction is
/// the failure of every caller in it.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    what: String,
    remedy: &'static str,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>, remedy: &'static str) -> Self {
        Self { kind, what: what.into(), remedy }
    }

    /// A variant of a `non_exhaustive` enum that this version of the backend does not know.
    pub(crate) fn unknown(what: &impl fmt::Debug) -> Self {
        Self::new(
            ErrorKind::Unsupported,
            format!("the sqlite backend does not know {what:?}"),
            "use versions of dq-core and dq-sqlite that were released together",
        )
    }

    /// This failure of one call, as those are told whose work was undone with it. Nothing is wrong
    /// with theirs, so what would be final for the one is not for the others.
    pub(crate) fn of_another_call(self) -> Self {
        if self.kind.is_retryable() {
            return self;
        }
        Self::new(
            ErrorKind::Unavailable,
            format!(
                "undone with another call of the same transaction, which failed: {}",
                self.what
            ),
            "repeat the call",
        )
    }

    /// This failure of a COMMIT: whether the transaction reached the disk cannot be told.
    pub(crate) fn of_commit(self) -> Self {
        // A full disk is met while the frames are written, before the one that commits them.
        if self.kind == ErrorKind::Full {
            return self;
        }
        Self::new(
            ErrorKind::OutcomeUnknown,
            format!("the commit failed: {}", self.what),
            "repeat the call, with the same job ids: what has taken effect is not done twice",
        )
    }

    /// The error that a caller sees.
    pub(crate) fn into_error(self, operation: &'static str, path: &Path) -> Error {
        Error::new(self.kind, format!("{}: {}", path.display(), self.what))
            .remedy(self.remedy)
            .operation(operation)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.kind, self.what, self.remedy)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let (kind, remedy) = classify(&error);
        Self::new(kind, error.to_string(), remedy)
    }
}

fn classify(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Full, "free space on the disk, or raise `size_limit_mib`")
        }
        Some(ErrorCode::ReadOnly) => (
            ErrorKind::ReadOnly,
            "give this process write access to the file, its directory, and the -wal and -shm files",
        ),
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Incompatible,
            "the file is no SQLite database, or is encrypted: choose another path",
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Incompatible,
            "the file is damaged: stop every process that has it open, then restore a backup or use the `.recover` command of the sqlite3 shell",
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            "another connection holds the write lock: keep transactions short, begin them with BEGIN IMMEDIATE, or raise `busy_timeout`",
        ),
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Unavailable,
            "check that the directory exists and that this process may create files in it",
        ),
        Some(ErrorCode::PermissionDenied) => {
            (ErrorKind::Unavailable, "give this process access to the file and its directory")
        }
        Some(ErrorCode::SystemIoFailure) => {
            (ErrorKind::Unavailable, "check the disk and the system log")
        }
        Some(ErrorCode::TooBig) => {
            (ErrorKind::InvalidInput, "store the data elsewhere and schedule its address")
        }
        Some(ErrorCode::OutOfMemory) => (ErrorKind::Unavailable, "free memory"),
        Some(ErrorCode::SchemaChanged) | Some(ErrorCode::Unknown) => (
            ErrorKind::Incompatible,
            "the tables are not as this version made them: choose another `table_prefix`, or restore them",
        ),
        _ => (ErrorKind::Internal, "please report this with the message"),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn failure(conn: &Connection, sql: &str) -> Failure {
        conn.execute_batch(sql).unwrap_err().into()
    }

    #[test]
    fn each_class_has_its_kind_and_a_remedy() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE t (x); PRAGMA query_only = ON").unwrap();
        let read_only = failure(&conn, "INSERT INTO t VALUES (1)");
        assert_eq!(read_only.kind, ErrorKind::ReadOnly);
        conn.execute_batch("PRAGMA query_only = OFF; PRAGMA max_page_count = 1").unwrap();
        let full = failure(&conn, "INSERT INTO t VALUES (zeroblob(100000))");
        assert_eq!(full.kind, ErrorKind::Full);
        let error = full.into_error("schedule", Path::new("jobs.db"));
        assert!(error.to_string().starts_with("schedule: full: jobs.db: "), "{error}");
        assert!(error.remedy_text().is_some());
    }

    #[test]
    fn what_is_final_for_one_call_is_not_for_its_neighbours() {
        let told = |kind| Failure::new(kind, "", "").of_another_call().kind;
        assert_eq!(told(ErrorKind::Unsupported), ErrorKind::Unavailable);
        assert_eq!(told(ErrorKind::Internal), ErrorKind::Unavailable);
        assert_eq!(told(ErrorKind::Full), ErrorKind::Full);
    }

    #[test]
    fn a_failed_commit_is_unknown_unless_the_disk_is_full() {
        let io = Failure::new(ErrorKind::Unavailable, "disk I/O error", "");
        assert_eq!(io.of_commit().kind, ErrorKind::OutcomeUnknown);
        let full = Failure::new(ErrorKind::Full, "disk is full", "");
        assert_eq!(full.of_commit().kind, ErrorKind::Full);
    }
}
