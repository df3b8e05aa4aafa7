//! Why a recurrence is refused.

use std::fmt;

/// Why a cron expression, a time zone or an interval is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not a cron expression.
    Expression,
    /// The cron expression matches no time at all, as `0 0 31 2 *`.
    NeverMatches,
    /// The time zone database has no zone of this name.
    Zone,
    /// The interval is not between a millisecond and a hundred years.
    Interval,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message }
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Names the text that was refused, and why, or what to write instead.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
