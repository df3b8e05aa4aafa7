//! The one error type: what went wrong, whether to try again, where, and what to do about it.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Any error, as handlers return it. `?` converts every `std::error::Error` into it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What a call of the framework returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an [`Error`]. New kinds may be added in any release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument was refused before anything was stored.
    InvalidInput,
    /// The backend does not offer what was asked; its [`Capabilities`](crate::Capabilities) say so.
    Unsupported,
    /// The configuration or the URL cannot be used.
    Config,
    /// Two things claim one name: handlers of one code, runners of one name.
    Duplicate,
    /// A queue is served or scheduled that no linked handler handles.
    Unhandled,
    /// A handler asks for state that the runner was not given.
    MissingState,
    /// A payload or header does not encode or decode.
    Codec,
    /// The store cannot be reached now.
    Unavailable,
    /// The store refused for want of space.
    Full,
    /// The store, or its file, cannot be written.
    ReadOnly,
    /// The store holds something that is not ours or of a version that we do not know.
    Incompatible,
    /// The call may or may not have taken effect; repeat it with the same job ids.
    OutcomeUnknown,
    /// The lease is no longer held; the call had no effect.
    StaleLease,
    /// The backend, the client or the runner has been closed.
    Closed,
    /// A broken promise inside the framework or the store.
    Internal,
}

impl ErrorKind {
    /// The kind as a word for logs and metrics.
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
            Self::StaleLease => "stale lease",
            Self::Closed => "closed",
            Self::Internal => "internal",
        }
    }

    /// Whether the same call may succeed later with nobody having mended anything.
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

/// An error of the framework.
///
/// `Display` prints one line: `operation: kind: what (remedy)`. Errors never hold a password or a
/// payload. Clones share the source error.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    what: Cow<'static, str>,
    remedy: Option<Cow<'static, str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a sentence that names the guilty thing.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                operation: "",
                what: what.into(),
                remedy: None,
                source: None,
            }),
        }
    }

    /// An [`ErrorKind::InvalidInput`] error.
    pub fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, what)
    }

    /// An [`ErrorKind::Unsupported`] error naming the backend and what it does not offer.
    pub fn unsupported(backend: &str, feature: &str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("the {backend} backend does not offer {feature}"))
            .remedy("see the capability table in the README for the backends that do")
    }

    /// Names the call that failed, such as `"schedule"`. The outermost caller wins only if no
    /// name was given before.
    #[must_use]
    pub fn operation(mut self, operation: &'static str) -> Self {
        if self.inner.operation.is_empty() {
            self.inner.operation = operation;
        }
        self
    }

    /// Says what the reader should do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.inner.remedy = Some(remedy.into());
        self
    }

    /// Keeps the error beneath this one.
    #[must_use]
    pub fn source(mut self, source: impl Into<BoxError>) -> Self {
        self.inner.source = Some(source.into().into());
        self
    }

    /// The class of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same call may succeed later by itself.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.inner.kind.is_retryable()
    }

    /// The call that failed, or an empty string.
    #[must_use]
    pub fn failed_operation(&self) -> &'static str {
        self.inner.operation
    }

    /// What went wrong, with the guilty thing named.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.inner.what
    }

    /// What the reader should do, where that is known.
    #[must_use]
    pub fn remedy_text(&self) -> Option<&str> {
        self.inner.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, operation, what, remedy, .. } = &*self.inner;
        if !operation.is_empty() {
            write!(f, "{operation}: ")?;
        }
        write!(f, "{kind}: {what}")?;
        if let Some(remedy) = remedy {
            write!(f, " ({remedy})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What `main` prints of an error that it returns.
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
