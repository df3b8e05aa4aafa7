//! Job keys.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::name::check_name;
use crate::error::{Error, Result};

/// An application's name for a job, such as `order-1001`.
///
/// It has 1 to 255 bytes of UTF-8 without control characters. At most one live (scheduled, ready or
/// running) job in a queue has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobKey(Arc<str>);

impl JobKey {
    /// Maximum length in bytes of UTF-8.
    pub const MAX_BYTES: usize = 255;

    /// Checks and creates a key.
    ///
    /// # Errors
    /// `InvalidInput` if the key is empty, too long, or contains a control character.
    pub fn new(key: impl AsRef<str>) -> Result<Self> {
        let key = key.as_ref();
        check_name("key", key, Self::MAX_BYTES)?;
        Ok(Self(key.into()))
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for JobKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for JobKey {
    type Error = Error;

    fn try_from(key: String) -> Result<Self> {
        Self::new(key)
    }
}

impl TryFrom<&str> for JobKey {
    type Error = Error;

    fn try_from(key: &str) -> Result<Self> {
        Self::new(key)
    }
}

impl From<JobKey> for String {
    fn from(key: JobKey) -> Self {
        key.as_str().to_owned()
    }
}
