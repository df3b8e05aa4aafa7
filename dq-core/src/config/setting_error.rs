//! The error for an unusable setting.

use std::fmt;

/// A setting that is missing, out of range, or in conflict with others. The caller adds the place.
#[derive(Debug)]
pub(super) struct SettingError {
    /// Path in its table, such as `backoff.factor`.
    pub(super) field: &'static str,
    /// The problem and remedy, as a predicate with the field as subject.
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
