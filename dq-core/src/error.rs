//! The framework's error type.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A boxed error; `?` converts every `std::error::Error` into it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A result with the framework's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`]. New kinds may be added in any release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument was rejected before anything was stored.
    InvalidInput,
    /// The backend lacks a required capability; see [`Capabilities`](crate::Capabilities).
    Unsupported,
    /// The configuration or a URL is invalid.
    Config,
    /// Two handlers, schedules, backends, forwards or ingresses have the same name.
    Duplicate,
    /// No linked handler handles a queue to serve or schedule.
    Unhandled,
    /// A handler extracts state that is not registered with the runner.
    MissingState,
    /// A payload or header does not encode or decode.
    Codec,
    /// The store cannot be reached now.
    Unavailable,
    /// The store has no space left.
    Full,
    /// The store or its file is not writable.
    ReadOnly,
    /// The store has another program's data or an unknown version, or its server and this process
    /// have incompatible versions.
    Incompatible,
    /// The call may have taken effect. You can safely repeat it with the same job ids.
    OutcomeUnknown,
    /// The backend, client or runner has been closed.
    Closed,
    /// A bug in the framework or in the store.
    Internal,
}

impl ErrorKind {
    /// Returns the kind's name, for logs and metrics.
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

    /// Returns whether the same call may succeed later without intervention.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::OutcomeUnknown | Self::Full)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error: kind, message and remedy.
///
/// `Display` prints `operation: kind: message (remedy)` on one line. Errors never contain a
/// password or a payload. Clones share the source error.
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
    /// Creates an error. The message names the value or resource that caused it.
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

    /// Creates an [`ErrorKind::Unsupported`] error with the backend and the missing feature.
    pub fn unsupported(backend: &str, feature: &str) -> Self {
        Self::new(
            ErrorKind::Unsupported,
            format!("the {backend} backend does not support {feature}"),
        )
        .remedy("the guide's page \"Choosing a backend\" compares the backends")
    }

    /// Sets the failed operation, such as `"schedule"`, unless it is already set.
    pub fn operation(mut self, operation: &'static str) -> Self {
        if self.inner.operation.is_empty() {
            self.inner.operation = operation;
        }
        self
    }

    /// Sets the user's remedy.
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.inner.remedy = Some(remedy.into());
        self
    }

    /// Prefixes the message with its place, such as a configuration table.
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.inner.message = format!("{place}: {}", self.inner.message).into();
        self
    }

    /// Sets the underlying error.
    pub fn source(mut self, source: impl Into<BoxError>) -> Self {
        self.inner.source = Some(source.into().into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns whether the kind is [retryable](ErrorKind::is_retryable).
    pub fn is_retryable(&self) -> bool {
        self.inner.kind.is_retryable()
    }

    /// Returns the failed operation; empty if not set.
    pub fn failed_operation(&self) -> &'static str {
        self.inner.operation
    }

    /// Returns the message, without kind, operation and remedy.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Returns the user's remedy, if known.
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
