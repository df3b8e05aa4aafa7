//! The error for a setting that cannot be used.

use std::fmt;

/// A setting that is missing, out of range, or does not fit others. The caller adds where it is.
#[derive(Debug)]
pub(super) struct SettingError {
    /// The path of the setting in its table, such as `backoff.factor`.
    pub(super) field: &'static str,
    /// What is wrong, and the remedy; the predicate of a sentence whose subject is the field.
    pub(super) problem: String,
}

impl SettingError {
    pub(super) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)
    }
}
