//! Webhook settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::Secret;
use serde::Deserialize;

/// Webhook settings (`type = "http"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpSettings {
    /// The URL: `https://host[:port]/path?query`, or `http://…`.
    pub url: Secret,
    /// The signing keys, in Standard Webhooks form: `whsec_` and Base64 of 24 to 64 bytes.
    ///
    /// Each key adds a signature, so you can rotate keys without a gap: add the new key, change the
    /// receiver, remove the old key. Without keys, requests are unsigned.
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// Further headers, such as `Authorization`.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Timeout of one request including its connection, 10 ms to 1 h; 30 s by default.
    #[serde(default = "default_timeout", with = "dq_core::config::duration")]
    pub timeout: Duration,
    /// Non-public addresses or networks to allow, such as `10.1.0.0/16`.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Statuses, besides 410, that mark a job dead at once, such as `[400, 422]`. Other failures
    /// are retried.
    #[serde(default)]
    pub dead_on: Vec<u16>,
    /// A PEM file with the certificate authorities to trust; the operating system's by default.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

const fn default_timeout() -> Duration {
    Duration::from_secs(30)
}

impl HttpSettings {
    /// Returns the default settings for a URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            secrets: Vec::new(),
            headers: BTreeMap::new(),
            timeout: default_timeout(),
            allow: Vec::new(),
            dead_on: Vec::new(),
            ca: None,
        }
    }
}
