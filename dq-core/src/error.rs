//! The error type of the framework: kind, failed operation, message, remedy and source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Any error, boxed. `?` converts every `std::error::Error` into it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The result of a call of the framework.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an [`Error`] is. New kinds may be added in any release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument was rejected before anything was stored.
    InvalidInput,
    /// The backend lacks the capability that the call needs; see
    /// [`Capabilities`](crate::Capabilities).
    Unsupported,
    /// The configuration or a URL is invalid.
    Config,
    /// A name is used twice: of handlers, schedules, runners, backends, forwards or ingresses.
    Duplicate,
    /// No linked handler handles a queue that is to be served or scheduled.
    Unhandled,
    /// A handler extracts state that was not registered with the runner.
    MissingState,
    /// A payload or a header could not be encoded or decoded.
    Codec,
    /// The store cannot be reached at the moment.
    Unavailable,
    /// The store has no space left.
    Full,
    /// The store, or its file, is not writable.
    ReadOnly,
    /// The store holds data of another program or of an unknown version, or its server or this
    /// process is too old for the other.
    Incompatible,
    /// The call may or may not have taken effect. Repeating it with the same job ids is safe.
    OutcomeUnknown,
    /// The backend, the client or the runner has been closed.
    Closed,
    /// A bug in the framework or in the store.
    Internal,
}

impl ErrorKind {
    /// The name of the kind, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid input",
            Self::Unsupported => "unsupported",
            Self::Config => "config",
            Self::Duplicate => "duplicate",
            Self::Unhandled => "unhandled",
            Self::MissingState => "missing state",
            Self::Codec => "codec",
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::ReadOnly => "read-only",
            Self::Incompatible => "incompatible",
            Self::OutcomeUnknown => "outcome unknown",
            Self::Closed => "closed",
            Self::Internal => "internal",
        }
    }

    /// Whether the same call may succeed later without any intervention.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::OutcomeUnknown | Self::Full)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call failed: kind, message, remedy.
///
/// `Display` prints one line: `operation: kind: message (remedy)`. Errors never contain a password
/// or a payload. Clones share the source error.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    message: Cow<'static, str>,
    remedy: Option<Cow<'static, str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error whose message names the value or resource that caused it.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                operation: "",
                message: message.into(),
                remedy: None,
                source: None,
            }),
        }
    }

    /// Creates an [`ErrorKind::InvalidInput`] error.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Creates an [`ErrorKind::Unsupported`] error that names the backend and the missing feature.
    pub fn unsupported(backend: &str, feature: &str) -> Self {
        Self::new(
            ErrorKind::Unsupported,
            format!("the {backend} backend does not support {feature}"),
        )
        .remedy("docs/guide/backends.md compares what the backends can do")
    }

    /// Sets the name of the failed operation, such as `"schedule"`, unless one is set already.
    #[must_use]
    pub fn operation(mut self, operation: &'static str) -> Self {
        if self.inner.operation.is_empty() {
            self.inner.operation = operation;
        }
        self
    }

    /// Sets what the user should do to fix the problem.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.inner.remedy = Some(remedy.into());
        self
    }

    /// Puts the place of the cause in front of the message, such as a table of the configuration.
    #[must_use]
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.inner.message = format!("{place}: {}", self.inner.message).into();
        self
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn source(mut self, source: impl Into<BoxError>) -> Self {
        self.inner.source = Some(source.into().into());
        self
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same call may succeed later without any intervention.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.inner.kind.is_retryable()
    }

    /// The name of the failed operation; empty if it is not set.
    #[must_use]
    pub fn failed_operation(&self) -> &'static str {
        self.inner.operation
    }

    /// What went wrong, without kind, operation and remedy.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// What the user should do to fix the problem, if known.
    #[must_use]
    pub fn remedy_text(&self) -> Option<&str> {
        self.inner.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, operation, message, remedy, .. } = &*self.inner;
        if !operation.is_empty() {
            write!(f, "{operation}: ")?;
        }
        write!(f, "{kind}: {message}")?;
        if let Some(remedy) = remedy {
            write!(f, " ({remedy})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `main` prints this for an error that it returns.
        fmt::Display::fmt(self, f)?;
        if let Some(source) = &self.inner.source {
            write!(f, "; caused by: {source}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
