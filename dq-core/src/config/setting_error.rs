//! The error for an unusable setting.

use std::fmt;

/// An unusable setting. The caller adds the place.
#[derive(Debug)]
pub(super) struct SettingError {
    /// Path in its table, such as `backoff.factor`.
    pub(super) field: &'static str,
    /// The problem and remedy, which continue a sentence after the field: `is 0; it must be …`.
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
