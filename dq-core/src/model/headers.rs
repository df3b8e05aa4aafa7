//! Small text beside the payload: trace context, content type, schema version, the user's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits::{Limits, check_name};
use crate::error::{Error, Result};

/// Text headers of a job, in order of their names. Names obey the rules of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// MIME type of the payload; `application/json` where it is absent.
    pub const CONTENT_TYPE: &'static str = "content-type";
    /// Version of the payload's schema, in the user's own terms.
    pub const SCHEMA_VERSION: &'static str = "schema-version";
    /// W3C trace context of whoever scheduled the job.
    pub const TRACEPARENT: &'static str = "traceparent";

    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Sets a header and returns the value it had.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Option<String> {
        self.0.insert(name.into(), value.into())
    }

    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All headers in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of all names and values together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Checks names and the total size.
    ///
    /// # Errors
    /// `InvalidInput` naming the header or the bound.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        for name in self.0.keys() {
            check_name("header name", name, Limits::KEY)?;
        }
        let bytes = self.bytes();
        if bytes > limits.headers {
            return Err(Error::invalid(format!(
                "the headers have {bytes} bytes; at most {} are allowed",
                limits.headers
            ))
            .remedy("put large values into the payload"));
        }
        Ok(())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
