//! The settings of a webhook.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::Secret;
use serde::Deserialize;

/// The settings of a webhook: `type = "http"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Where requests go: `https://host[:port]/path?query`, or `http://…`.
    pub url: Secret,
    /// The keys that sign requests, in the form of Standard Webhooks: `whsec_` and Base64 of 24 to 64
    /// bytes. Each adds a signature, so that a key can be replaced without a gap: add the new one,
    /// change the receiver, remove the old one. Without keys, requests are not signed.
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// Further headers, such as `Authorization`.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Maximum duration of one request with its connection; 10 ms to 1 h. Default 30 s.
    #[serde(default = "default_timeout", with = "dq_core::config::duration")]
    pub timeout: Duration,
    /// Addresses or networks, such as `10.1.0.0/16`, that are reached although they are not public.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Statuses, besides 410, after which a job is dead at once, such as `[400, 422]`. Default: none;
    /// all other failures are retried.
    #[serde(default)]
    pub dead_on: Vec<u16>,
    /// A PEM file with the certificate authorities to trust. Default: those of the operating system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

const fn default_timeout() -> Duration {
    Duration::from_secs(30)
}

impl HttpSettings {
    /// The default settings for a URL.
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
