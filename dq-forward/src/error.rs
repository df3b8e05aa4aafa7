//! Errors about settings.

use std::borrow::Cow;
use std::fmt::Display;

use dq_core::{Error, ErrorKind};

/// The error for a setting that cannot be used.
pub(crate) fn invalid_setting(what: impl Display, remedy: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Config, what.to_string()).remedy(remedy)
}
