//! Results of `check`.

use std::fmt;

/// How serious a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// No action is needed.
    Info,
    /// The store works, but not as well or as safely as it could.
    Warning,
    /// A promise of the contract is broken until this is fixed.
    Error,
}

/// A problem with a store and its fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// A stable code, such as `"sqlite.wal-reset-bug"`.
    pub code: &'static str,
    /// What is wrong.
    pub cause: String,
    /// How to fix it.
    pub remedy: String,
}

impl Finding {
    /// Creates a finding.
    pub fn new(
        severity: Severity,
        code: &'static str,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { severity, code, cause: cause.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity} [{}]: {} — {}", self.code, self.cause, self.remedy)
    }
}
