//! A trial's failure.

use std::fmt;
use std::panic::Location;

/// Why a trial failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    message: String,
}

/// The result of a whole trial or a part.
pub type TrialResult<T = ()> = Result<T, Failure>;

impl Failure {
    /// Creates a failure at the caller's line.
    #[track_caller]
    #[must_use]
    pub fn new(message: impl fmt::Display) -> Self {
        let at = Location::caller();
        Self { message: format!("{message}\n  at {}:{}", at.file(), at.line()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<dq_core::Error> for Failure {
    #[track_caller]
    fn from(error: dq_core::Error) -> Self {
        Self::new(format_args!("the backend returned {error:?}"))
    }
}

/// The message states the contract's requirement.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::behaviour::Failure::new(format_args!($($message)+)));
        }
    };
}

/// The message states the contract's requirement.
macro_rules! ensure_eq {
    ($actual:expr, $expected:expr, $($message:tt)+) => {
        match (&$actual, &$expected) {
            (actual, expected) => {
                if *actual != *expected {
                    return Err($crate::behaviour::Failure::new(format_args!(
                        "{}\n  actual:   {actual:?}\n  expected: {expected:?}",
                        format_args!($($message)+),
                    )));
                }
            }
        }
    };
}

/// The message states the contract's requirement.
macro_rules! ensure_matches {
    ($actual:expr, $pattern:pat $(if $guard:expr)?, $($message:tt)+) => {
        match &$actual {
            $pattern $(if $guard)? => {}
            actual => {
                return Err($crate::behaviour::Failure::new(format_args!(
                    "{}\n  actual:   {actual:?}\n  expected: {}",
                    format_args!($($message)+),
                    stringify!($pattern),
                )));
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq, ensure_matches};
