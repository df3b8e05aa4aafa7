//! Settings of the `redis-expiry` backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::{ConnectUrl, Secret};
use dq_core::{QueueName, Result};
use serde::Deserialize;

use crate::config::{RedisConfig, default_prefix, default_response_timeout};
use crate::connect::{ADDRESS_OPTIONS, as_redis};
use crate::shards;

/// Settings of the `redis-expiry` backend: `type = "redis-expiry"` and the fields below.
///
/// ```
/// use dq_redis::RedisExpiryConfig;
///
/// let mut config = RedisExpiryConfig::new("redis://localhost:6379/0");
/// config.configure = true;
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisExpiryConfig {
    /// Server address, as in [`RedisConfig::url`]. You can also write the schemes `redis-expiry`,
    /// `redis-expiry+unix`, `redis-expiry+cluster` and `redis-expiry+sentinel`, with `?tls=true`
    /// for TLS.
    pub url: Secret,
    /// Certificates to trust, as in [`RedisConfig::ca`].
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// First part of all key names, as in [`RedisConfig::prefix`]. A `redis` backend with the same
    /// prefix shares the same jobs.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// How long to wait for a reply, as in [`RedisConfig::response_timeout`].
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// Shard counts by queue, as in [`RedisConfig::shards`].
    #[serde(default, deserialize_with = "shards::read")]
    pub shards: BTreeMap<QueueName, u16>,
    /// Whether to turn notifications on by `CONFIG SET notify-keyspace-events` at every primary.
    /// This adds letters and removes none. Default: `false`, because it changes the server for all
    /// users.
    #[serde(default)]
    pub configure: bool,
}

impl RedisExpiryConfig {
    /// Creates the default settings for this server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let RedisConfig { url, ca, prefix, response_timeout, shards } = RedisConfig::new(url);
        Self { url, ca, prefix, response_timeout, shards, configure: false }
    }

    /// Reads a URL as in [`url`](Self::url), with any of the options `prefix`, `ca`, `tls`,
    /// `response_timeout` and `configure` (`true` or `false`).
    ///
    /// # Errors
    /// `Config` if an option is unknown or malformed; the error names it.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        url.expect_options(&["prefix", "ca", "tls", "response_timeout", "configure"])?;
        let config: Self =
            url.deserialize(url.to_fields(ADDRESS_OPTIONS, &["configure"])).map_err(|error| {
                error.remedy(
                    "see `RedisExpiryConfig` for the options; durations are written like `5s`",
                )
            })?;
        config.native().validate()?;
        Ok(config)
    }

    pub(super) fn native(&self) -> RedisConfig {
        RedisConfig {
            url: as_redis(&self.url, "redis-expiry"),
            ca: self.ca.clone(),
            prefix: self.prefix.clone(),
            response_timeout: self.response_timeout,
            shards: self.shards.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use dq_core::ErrorKind;

    use super::*;

    #[test]
    fn the_native_backend_gets_the_other_settings() {
        let url =
            "redis-expiry+cluster://a,b?prefix=shop&configure=true&response_timeout=2s&tls=true";
        let config = RedisExpiryConfig::from_url(&ConnectUrl::parse(url).unwrap()).unwrap();
        assert!(config.configure);
        let native = config.native();
        assert_eq!(native.url.expose(), "redis+cluster://a,b?tls=true");
        assert_eq!((native.prefix.as_str(), native.response_timeout.as_secs()), ("shop", 2));

        let fields = r#"{"url": "redis-expiry://h", "shards": {"hot": 4}}"#;
        let native = serde_json::from_str::<RedisExpiryConfig>(fields).unwrap().native();
        assert_eq!(native.shards, BTreeMap::from([(QueueName::new("hot").unwrap(), 4)]));
    }

    #[test]
    fn invalid_options_are_refused() {
        for (options, word) in [
            ("configure=yes", "`configure` of the redis-expiry URL is invalid: expected a boolean"),
            ("configured=true", "\"configured\""),
            ("prefix=a{b}", "prefix"),
        ] {
            let url = ConnectUrl::parse(&format!("redis-expiry://host?{options}")).unwrap();
            let error = RedisExpiryConfig::from_url(&url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{options}");
            assert!(error.to_string().contains(word), "{options}: {error}");
        }
    }
}
