//! Job filters for listings and bulk changes.

use dq_core::{Error, Filter, Result, Timestamp};
use serde::{Deserialize, Serialize};

use crate::openapi;
use crate::text;

const MAX_TEXT: usize = 4 * 1024;

/// A job filter; a job matches if it meets every condition that is set.
///
/// Each text has 1 to 4,096 bytes. Empty texts are rejected: they usually come from an unset
/// variable, and would match far more jobs than intended.
///
/// ```
/// let mut filter = dq_ops::JobFilter::default();
/// filter.key_prefix = Some("order-".to_owned());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct JobFilter {
    /// Only jobs whose key begins with this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::FilterText>)]
    pub key_prefix: Option<String>,
    /// Only jobs that are due at this time or later.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none")]
    pub due_from: Option<Timestamp>,
    /// Only jobs that are due before this time.
    #[serde(with = "text::option", skip_serializing_if = "Option::is_none")]
    pub due_before: Option<Timestamp>,
    /// Only jobs whose last error, death reason or end reason contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::FilterText>)]
    pub error: Option<String>,
}

impl JobFilter {
    /// Returns whether every job matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the client's filter; `InvalidInput` if a text is empty or too long.
    pub(crate) fn to_core(&self) -> Result<Filter> {
        for (name, text) in [("key_prefix", &self.key_prefix), ("error", &self.error)] {
            if let Some(text) = text {
                check_text(name, text, MAX_TEXT)?;
            }
        }
        let mut filter = Filter::new();
        if let Some(prefix) = &self.key_prefix {
            filter = filter.key_prefix(prefix);
        }
        if let Some(error) = &self.error {
            filter = filter.error(error);
        }
        Ok(match (self.due_from, self.due_before) {
            (Some(from), Some(before)) => filter.due(from..before),
            (Some(from), None) => filter.due(from..),
            (None, Some(before)) => filter.due(..before),
            (None, None) => filter,
        })
    }

    pub(crate) fn describe(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.key_prefix.iter().map(|prefix| format!("key begins with {prefix:?}")));
        parts.extend(self.due_from.iter().map(|from| format!("due from {from}")));
        parts.extend(self.due_before.iter().map(|before| format!("due before {before}")));
        parts.extend(self.error.iter().map(|error| format!("error contains {error:?}")));
        if parts.is_empty() { "all".to_owned() } else { parts.join(", ") }
    }
}

/// Rejects an empty or too long text as `InvalidInput`.
pub(crate) fn check_text(name: &str, text: &str, max: usize) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(format!("the text {name} is empty"))
            .remedy(format!("leave {name} out to take all jobs")));
    }
    if text.len() > max {
        return Err(Error::invalid(format!("the text {name} has {} bytes", text.len()))
            .remedy(format!("shorten it to {max} bytes")));
    }
    Ok(())
}
