//! Text headers: the library's own and the user's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::key::JobKey;
use super::name::check_name;
use crate::error::{Error, Result};

/// A job's text headers, ordered by name. Names follow the rules for [`JobKey`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// The payload's MIME type; `application/json` if absent.
    pub const CONTENT_TYPE: &'static str = "content-type";
    /// The payload's schema version, a positive integer. Set on jobs for a handler that declares a
    /// version.
    pub const SCHEMA_VERSION: &'static str = "schema-version";
    /// The schedule that created the job.
    pub const SCHEDULE: &'static str = "dq-schedule";
    /// The occurrence's time, in milliseconds since 1970-01-01T00:00Z.
    pub const OCCURRENCE: &'static str = "dq-occurrence";
    /// The escalation step, counted from 0; absent at step 0. Stores keep it with the payload, so
    /// the history and listings without payloads lack it.
    pub const STEP: &'static str = "dq-step";
    /// The first step's due time, in milliseconds since 1970-01-01T00:00Z, for escalations that
    /// count from it. Absent at step 0; stored like [`Self::STEP`].
    pub const FIRST_DUE: &'static str = "dq-first-due";
    /// The job's group, of 1 to 128 bytes; see [`NewJob::group`](super::NewJob::group).
    pub const GROUP: &'static str = "dq-group";
    /// The W3C trace context of the code that scheduled the job.
    pub const TRACEPARENT: &'static str = "traceparent";

    /// Maximum length of a group in bytes of UTF-8.
    pub const MAX_GROUP_BYTES: usize = 128;

    /// Returns whether a MIME type is JSON, in any case.
    ///
    /// Parameters are ignored, because JSON is UTF-8 whatever they say.
    pub fn is_json(mime_type: &str) -> bool {
        let essence = mime_type.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("application/json")
    }

    /// Creates empty headers.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Sets a header and returns its previous value.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Option<String> {
        self.0.insert(name.into(), value.into())
    }

    /// Returns a header's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Iterates over names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the total size of names and values in bytes.
    pub fn size_bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Checks the names, the group, and the total size against `max_bytes`.
    ///
    /// # Errors
    /// `InvalidInput` if a name breaks the key rules, the group is empty, too long or contains a
    /// control character, or the headers are too large.
    pub fn validate(&self, max_bytes: usize) -> Result<()> {
        for name in self.0.keys() {
            check_name("header name", name, JobKey::MAX_BYTES)?;
        }
        if let Some(group) = self.get(Self::GROUP) {
            check_name("group", group, Self::MAX_GROUP_BYTES)?;
        }
        let bytes = self.size_bytes();
        if bytes > max_bytes {
            return Err(Error::invalid(format!(
                "the headers have {bytes} bytes; at most {max_bytes} are allowed"
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
