//! Errors for invalid times.

use std::fmt;

/// Error for an invalid cron expression, time zone or interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Not a cron expression.
    Expression,
    /// The cron expression never matches, such as `0 0 31 2 *`.
    NeverMatches,
    /// Unknown time zone name.
    Zone,
    /// Not between a millisecond and a hundred years.
    Interval,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message }
    }

    /// Returns the error's kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Names the refused text, and why it is refused or what to write instead.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
