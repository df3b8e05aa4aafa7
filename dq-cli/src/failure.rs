//! Failures of commands, and their exit codes.

use std::io;

use dq_ops::OpsError;

use crate::text;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command ends early or with an exit code other than 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store, the server or this program refused the request.
    Error {
        /// Error kind: [`OpsError::kind`], a problem title from the server (also `too large` or
        /// `timeout`), or a kind of this program, such as `listen`.
        kind: String,
        message: String,
        remedy: Option<String>,
    },
    /// The reader closed the output, as in `| head -1`. Not an error.
    OutputClosed,
    /// The output already names the problem; only the exit code remains.
    Reported(u8),
}

pub(crate) const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
/// Exit code if the job's state forbids the request, or another job has its key.
pub(crate) const CONFLICT: u8 = 4;
const UNREACHABLE: u8 = 5;

impl Failure {
    pub(crate) fn new(kind: &str, message: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty());
        Self::Error { kind: kind.to_owned(), message: message.into(), remedy }
    }

    pub(crate) fn usage(message: impl Into<String>, remedy: &str) -> Self {
        Self::new("invalid input", message, remedy)
    }

    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::new("output", format!("the output cannot be written: {error}"), ""),
        }
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Reported(code) => *code,
            Self::Error { kind, .. } => match kind.as_str() {
                "invalid input" | "config" | "codec" | "too large" => USAGE,
                "not found" => NOT_FOUND,
                "conflict" => CONFLICT,
                "unavailable" | "outcome unknown" | "closed" | "timeout" => UNREACHABLE,
                _ => FAILED,
            },
        }
    }

    pub(crate) fn report(&self) -> Option<String> {
        let Self::Error { message, remedy, .. } = self else { return None };
        let mut report = format!("error: {}\n", text::clean(message));
        if let Some(remedy) = remedy {
            report += &format!("remedy: {}\n", text::clean(remedy));
        }
        Some(report)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == NOT_FOUND
    }

    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Error { kind, .. } if kind == "forbidden")
    }

    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Error { kind, .. } if kind == "unsupported")
    }
}

impl From<OpsError> for Failure {
    fn from(error: OpsError) -> Self {
        Self::Error {
            kind: error.kind().to_owned(),
            message: error.message(),
            remedy: error.remedy(),
        }
    }
}

impl From<dq_core::Error> for Failure {
    fn from(error: dq_core::Error) -> Self {
        OpsError::from(error).into()
    }
}
