//! Converts SQLite errors to dq errors: kind, message, remedy.

use std::fmt;
use std::path::Path;

use dq_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

pub(crate) type StoreResult<T> = std::result::Result<T, StoreError>;

/// [`Self::into_error`] adds operation and path. Cloned for every call in a failed transaction.
#[derive(Debug, Clone)]
pub(crate) struct StoreError {
    pub(crate) kind: ErrorKind,
    /// Without the path.
    pub(crate) message: String,
    pub(crate) remedy: &'static str,
}

impl StoreError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>, remedy: &'static str) -> Self {
        Self { kind, message: message.into(), remedy }
    }

    /// For a variant of a `non_exhaustive` enum that this version does not support.
    pub(crate) fn unsupported(variant: &impl fmt::Debug) -> Self {
        Self::new(
            ErrorKind::Unsupported,
            format!("the sqlite backend does not support {variant:?}"),
            "use versions of dq-core and dq-sqlite that were released together",
        )
    }

    /// Converts to the error for the other calls of the rolled back transaction. They are valid, so
    /// it is retryable.
    pub(crate) fn for_other_calls(self) -> Self {
        if self.kind.is_retryable() {
            return self;
        }
        Self::new(
            ErrorKind::Unavailable,
            format!(
                "rolled back because another call of the same transaction failed: {}",
                self.message
            ),
            "repeat the call",
        )
    }

    /// Converts to `OutcomeUnknown`, because the transaction may have reached the disk, unless the
    /// disk is full.
    pub(crate) fn into_commit_error(self) -> Self {
        // SQLite reports a full disk before it writes the commit frame.
        if self.kind == ErrorKind::Full {
            return self;
        }
        Self::new(
            ErrorKind::OutcomeUnknown,
            format!("the commit failed: {}", self.message),
            "repeat the call with the same job ids: nothing takes effect twice",
        )
    }

    /// The file was gone after the commit: `OutcomeUnknown`, because the file may come back.
    pub(crate) fn after_commit(self) -> Self {
        let message = format!("committed, but {}", self.message);
        Self::new(ErrorKind::OutcomeUnknown, message, self.remedy)
    }

    pub(crate) fn into_error(self, operation: &'static str, path: &Path) -> Error {
        let path = path.display().to_string();
        // rusqlite appends the path to the message when opening fails.
        let message = self.message.strip_suffix(&format!(": {path}")).unwrap_or(&self.message);
        Error::new(self.kind, format!("{path}: {message}")).remedy(self.remedy).operation(operation)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.kind, self.message, self.remedy)
    }
}

impl From<rusqlite::Error> for StoreError {
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
            "the file is not a SQLite database, or it is encrypted: choose another path",
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Incompatible,
            "the file is corrupt: stop every process that has it open, then restore a backup or use the `.recover` command of the sqlite3 shell",
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
            (ErrorKind::InvalidInput, "store the data elsewhere and schedule a reference to it")
        }
        Some(ErrorCode::OutOfMemory) => (ErrorKind::Unavailable, "free memory"),
        // `Unknown` is plain SQLITE_ERROR: a table or column in the statement does not exist.
        Some(ErrorCode::SchemaChanged | ErrorCode::Unknown) => (
            ErrorKind::Incompatible,
            "the tables differ from those that dq-sqlite created: restore them, or choose another `table_prefix`",
        ),
        _ => (ErrorKind::Internal, "please report this with the message"),
    }
}

/// One of several transactions failed after `done` items were committed. Errors that repeating does
/// not fix keep their kind.
pub(crate) fn after_a_part(operation: &'static str, done: usize, error: &Error) -> Error {
    let kind = if error.is_retryable() { ErrorKind::OutcomeUnknown } else { error.kind() };
    let message = format!("{done} items took effect, and the next ones failed: {error}");
    let remedy = "repeat the call with the same job ids: nothing takes effect twice";
    Error::new(kind, message).remedy(remedy).source(error.clone()).operation(operation)
}

pub(crate) fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "the store has been closed").operation(operation)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_failed_open_names_the_path_once() {
        let path = Path::new("no/such/dir/jobs.db");
        let error = StoreError::from(Connection::open(path).unwrap_err());
        let text = error.into_error("connect", path).to_string();
        assert_eq!(text.matches("no/such/dir").count(), 1, "{text}");
        assert!(text.contains("jobs.db: unable to open database file ("), "{text}");
    }

    #[test]
    fn a_failed_commit_has_an_unknown_outcome_unless_the_disk_is_full() {
        let io = StoreError::new(ErrorKind::Unavailable, "disk I/O error", "");
        assert_eq!(io.into_commit_error().kind, ErrorKind::OutcomeUnknown);
        let full = StoreError::new(ErrorKind::Full, "disk is full", "");
        assert_eq!(full.into_commit_error().kind, ErrorKind::Full);
    }
}
