//! Errors about settings.

use std::borrow::Cow;
use std::fmt::Display;

use dq_core::{Error, ErrorKind};

pub(crate) fn invalid_setting(what: impl Display, remedy: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Config, what.to_string()).remedy(remedy)
}
