//! How a trial fails: with a sentence of the contract and the line that checked it.

use std::fmt;
use std::panic::Location;

/// Why a trial failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    message: String,
}

/// What a trial, or a step of one, comes to.
pub type Passed<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure at the caller's line.
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
        Self::new(format_args!("the backend answered {error:?}"))
    }
}

/// Fails the trial unless the condition holds; the text says what the contract wants.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::behaviour::Failure::new(format_args!($($message)+)));
        }
    };
}

/// Fails the trial unless both are equal; the text says what the contract wants.
macro_rules! ensure_eq {
    ($found:expr, $wanted:expr, $($message:tt)+) => {
        match (&$found, &$wanted) {
            (found, wanted) => {
                if *found != *wanted {
                    return Err($crate::behaviour::Failure::new(format_args!(
                        "{}\n  found:  {found:?}\n  wanted: {wanted:?}",
                        format_args!($($message)+),
                    )));
                }
            }
        }
    };
}

/// Fails the trial unless the value has the shape; the text says what the contract wants.
macro_rules! ensure_matches {
    ($found:expr, $pattern:pat $(if $guard:expr)?, $($message:tt)+) => {
        match &$found {
            $pattern $(if $guard)? => {}
            found => {
                return Err($crate::behaviour::Failure::new(format_args!(
                    "{}\n  found:  {found:?}\n  wanted: {}",
                    format_args!($($message)+),
                    stringify!($pattern),
                )));
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq, ensure_matches};
