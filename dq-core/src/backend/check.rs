//! Findings: what an operator should know about a store.

use std::fmt;

/// How bad a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Info,
    /// Works, but not as well or as safely as it could.
    Warning,
    /// A promise of the contract does not hold until this is mended.
    Error,
}

/// One thing an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A stable word for it, such as `"sqlite.wal-reset-bug"`.
    pub code: &'static str,
    /// What was found.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity} [{}]: {} — {}", self.code, self.what, self.remedy)
    }
}
