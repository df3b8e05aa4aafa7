//! Why a command did not do what it should, and the exit codes.

use std::io;

use dq_ops::OpsError;

use crate::text;

/// Result of a part of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command ends with another code than 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store, the server or this program refuses the request.
    Error {
        /// The kind, as [`OpsError::kind`] names it; of a server's answer, which may also be `too large`
        /// or `timeout`, the title of the problem; or one of this program, such as `listen`.
        kind: String,
        /// What went wrong.
        message: String,
        /// What to do about it.
        remedy: Option<String>,
    },
    /// Nobody reads the output any more, such as after `| head -1`: not an error.
    OutputClosed,
    /// The output says what is wrong: only the exit code is left.
    Reported(u8),
}

/// The exit code of a failure without one of its own.
pub(crate) const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
/// The exit code if the state of a job forbids the request, also if another job has its key.
pub(crate) const CONFLICT: u8 = 4;
const UNREACHABLE: u8 = 5;

impl Failure {
    /// An error of a kind, with a remedy.
    pub(crate) fn new(kind: &str, message: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty());
        Self::Error { kind: kind.to_owned(), message: message.into(), remedy }
    }

    /// An argument that is wrong.
    pub(crate) fn usage(message: impl Into<String>, remedy: &str) -> Self {
        Self::new("invalid input", message, remedy)
    }

    /// An error of stdout. A reader that has gone away is none.
    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::new("output", format!("the output cannot be written: {error}"), ""),
        }
    }

    /// The exit code.
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

    /// The text for stderr; `None` if nothing is to be said.
    pub(crate) fn report(&self) -> Option<String> {
        let Self::Error { message, remedy, .. } = self else { return None };
        let mut report = format!("error: {}\n", text::clean(message));
        if let Some(remedy) = remedy {
            report += &format!("remedy: {}\n", text::clean(remedy));
        }
        Some(report)
    }

    /// Whether there is no such job or queue.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == NOT_FOUND
    }

    /// Whether the request needs another role.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Error { kind, .. } if kind == "forbidden")
    }

    /// Whether the store lacks what the request needs.
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
