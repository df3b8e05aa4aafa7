//! Settings of the Redisson backend.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::{ConnectUrl, Secret, invalid_setting};
use dq_core::{QueueName, Result};
use serde::Deserialize;

use super::codec::Codec;
use super::member::Format;
use crate::config::{check_prefix, default_prefix, default_response_timeout};
use crate::connect::{ADDRESS_OPTIONS, Server, ServerSettings, as_redis};

/// Settings of the Redisson backend: `type = "redisson"` and the fields below.
///
/// ```
/// use dq_redis::{Codec, RedissonConfig};
///
/// let mut config = RedissonConfig::new("redis://localhost:6379/0");
/// config.codec = Codec::Json; // Java uses TypedJsonJacksonCodec, or JSON text in a StringCodec
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedissonConfig {
    /// Server address, as in [`RedisConfig::url`](crate::RedisConfig::url). You can also write the
    /// schemes `redisson`, `redisson+unix`, `redisson+cluster` and `redisson+sentinel`.
    pub url: Secret,
    /// Certificates to trust, as in [`RedisConfig::ca`](crate::RedisConfig::ca).
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// First part of this backend's own key names, besides Redisson's. Default: `dq`.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// How long to wait for a reply. Default: `5s`.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// Format of the sorted set's entries: `current` (Redisson 3.21.1 and newer, the default) or
    /// `legacy`. `schedule` fails with `Incompatible` if the queue holds entries in the other
    /// format.
    #[serde(default)]
    pub format: Format,
    /// The Java clients' codec. Default: `raw`.
    #[serde(default)]
    pub codec: Codec,
    /// Codecs for single queues, instead of [`codec`](Self::codec).
    #[serde(default)]
    pub codecs: BTreeMap<QueueName, Codec>,
    /// The `NameMapper` prefix of the Java clients. Default: none.
    #[serde(default)]
    pub name_prefix: String,
    /// Whether Java's `size`, `contains`, `remove`, `readAll` and `poll` on an `RDelayedQueue` see
    /// jobs from this backend. Default: `hidden`.
    #[serde(default)]
    pub java_visibility: JavaVisibility,
    /// Queues that only Java clients consume. Default: none.
    ///
    /// This process moves their due jobs to the list from which Java's `take()` pops, as a Java
    /// process with an open `RDelayedQueue` does. A moved job loses its id, key, headers and
    /// attempt limit. Jobs of paused queues stay.
    #[serde(default)]
    pub consumed_by_java: BTreeSet<QueueName>,
}

/// Whether Java's calls on an `RDelayedQueue` see jobs from this backend.
///
/// These calls read the list `redisson_delay_queue:{queue}`, which repeats the waiting entries in
/// offer order. Java's `take()` does not read it and gets every job with each setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JavaVisibility {
    /// The list does not contain jobs from this backend. Entries from Java leave it some time after
    /// their delivery.
    #[default]
    Hidden,
    /// Jobs leave the list some time after their delivery: up to a tenth of the list was already
    /// delivered, and its order changes.
    Approximate,
    /// The list contains jobs exactly while they wait. For each delivery the server searches half
    /// of it on average, as Redisson itself does, at about 55 ns an entry.
    Exact,
}

impl RedissonConfig {
    /// Creates the default settings for this server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url.into()),
            ca: None,
            prefix: default_prefix(),
            response_timeout: default_response_timeout(),
            format: Format::default(),
            codec: Codec::default(),
            codecs: BTreeMap::new(),
            name_prefix: String::new(),
            java_visibility: JavaVisibility::default(),
            consumed_by_java: BTreeSet::new(),
        }
    }

    /// Reads a `redisson://…` URL with any of the options `prefix`, `ca`, `tls`,
    /// `response_timeout`, `format`, `codec`, `name_prefix` and `java_visibility`.
    ///
    /// # Errors
    /// `Config` if an option is unknown or malformed; the error names it.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        url.expect_options(&[
            "prefix",
            "ca",
            "tls",
            "response_timeout",
            "format",
            "codec",
            "name_prefix",
            "java_visibility",
        ])?;
        let config: Self =
            url.deserialize(url.to_fields(ADDRESS_OPTIONS, &[])).map_err(|error| {
                error
                    .remedy("see `RedissonConfig` for the options; durations are written like `5s`")
            })?;
        config.validate()?;
        Ok(config)
    }

    pub(super) fn server(&self) -> ServerSettings {
        ServerSettings {
            url: as_redis(&self.url, "redisson"),
            ca: self.ca.clone(),
            response_timeout: self.response_timeout,
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        if self.name_prefix.len() > 128 || self.name_prefix.contains(char::is_control) {
            return Err(invalid_setting(
                "`name_prefix` is longer than 128 bytes or contains a control character".to_owned(),
                "set it to what the NameMapper of the Java clients puts before names, such as \"app:\"",
            ));
        }
        Server::new(&self.server())?;
        Ok(())
    }

    pub(super) fn script_settings(&self) -> String {
        let format = match self.format {
            Format::Current => "current",
            Format::Legacy => "legacy",
        };
        let visibility = match self.java_visibility {
            JavaVisibility::Hidden => "hidden",
            JavaVisibility::Approximate => "approximate",
            JavaVisibility::Exact => "exact",
        };
        format!("local FORMAT, VISIBILITY = '{format}', '{visibility}'\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_sets_the_server_and_options() {
        let url = "redisson://h?format=legacy&codec=json&java_visibility=exact&name_prefix=app:";
        let config = RedissonConfig::from_url(&ConnectUrl::parse(url).unwrap()).unwrap();
        assert_eq!(config.format, Format::Legacy);
        assert_eq!(config.java_visibility, JavaVisibility::Exact);
        assert_eq!((config.codec, config.name_prefix.as_str()), (Codec::Json, "app:"));
    }

    #[test]
    fn invalid_and_unknown_settings_are_named_in_the_error() {
        for (url, word) in [
            ("redisson://h?format=old", "`format`"),
            ("redisson://h?codec=xml", "`codec`"),
            ("redisson://h?prefix=a{b}", "a{b}"),
            ("redisson://h?colour=red", "colour"),
            ("redisson://h?response_timeout=9ms", "`response_timeout`"),
            ("redis-expiry://h", "redis+sentinel://"),
        ] {
            let error = RedissonConfig::from_url(&ConnectUrl::parse(url).unwrap()).unwrap_err();
            assert_eq!(error.kind(), dq_core::ErrorKind::Config, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
