//! The error for a setting whose value is out of range.

use std::fmt;

/// A setting whose value is out of range. The caller adds where the setting is.
#[derive(Debug)]
pub(super) struct RangeError {
    /// The path of the setting in its table, such as `backoff.factor`.
    pub(super) field: &'static str,
    /// The value and the allowed range; the predicate of a sentence whose subject is the field.
    pub(super) problem: String,
}

impl RangeError {
    pub(super) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)
    }
}
