//! Settings of the native backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::{ConnectUrl, Secret, invalid_setting};
use dq_core::{QueueName, Result};
use serde::Deserialize;

use crate::connect::{ADDRESS_OPTIONS, Server, ServerSettings};
use crate::shards;

/// Settings of the native backend: `type = "redis"` and, beside it, these fields.
///
/// ```
/// use dq_redis::RedisConfig;
///
/// let mut config = RedisConfig::new("redis://localhost:6379/0");
/// config.prefix = "shop".to_owned();
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The server: `redis://[user:password@]host[:port][/database]`, `rediss://…` with TLS,
    /// `redis+unix:///path/to/socket`, `redis+cluster://host:port,host:port`, or
    /// `redis+sentinel://host:port,host:port/primary[/database]`. Its only option is `?tls=true`.
    pub url: Secret,
    /// A PEM file with the certificate of the authority that signed the server's certificate. The
    /// authorities of the system unless set.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The beginning of the names of all keys: `dq` unless set. At most 64 letters, digits and
    /// `. _ - :`. All keys of a prefix are in one slot of a cluster, except those of
    /// [`shards`](Self::shards).
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// How long to wait for a reply: `5s` unless set, and at least `10ms`.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// The number of shards of each queue, between 1 and 256; `*` stands for all queues without an
    /// entry.
    ///
    /// Shards spread the jobs of a queue over several slots of a cluster. The names of their keys
    /// begin with `{prefix#shards.shard}`, for which the server's user needs the same rights. A
    /// queue without an entry has the number that another process has set, or else one shard.
    ///
    /// The number is fixed while the queue holds jobs, dead ones included, while the id of an ended
    /// job is pinned, and while the queue is paused. If none of these holds, storing a job or
    /// pausing the queue gives it the number of the settings. If one of them holds and the number
    /// differs, storing a job is a `Config` error, and a pause keeps the stored number. All other
    /// calls use the stored number. To change the number of a queue that is never empty, use a new
    /// [`prefix`](Self::prefix) and list the old one under `[[drain]]`. All processes need the same
    /// number.
    ///
    /// In a cluster each claim makes at least one call for each slot. It claims the oldest of the
    /// jobs that are due when it begins.
    ///
    /// ```
    /// use dq_core::QueueName;
    /// use dq_redis::RedisConfig;
    ///
    /// let mut config = RedisConfig::new("redis+cluster://localhost:7000");
    /// config.shards.insert(QueueName::new("orders")?, 4);
    /// # Ok::<(), dq_core::Error>(())
    /// ```
    #[serde(default, deserialize_with = "shards::read")]
    pub shards: BTreeMap<QueueName, u16>,
}

pub(crate) fn default_prefix() -> String {
    "dq".to_owned()
}

pub(crate) const fn default_response_timeout() -> Duration {
    Duration::from_secs(5)
}

impl RedisConfig {
    /// The default settings for this server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url.into()),
            ca: None,
            prefix: default_prefix(),
            response_timeout: default_response_timeout(),
            shards: BTreeMap::new(),
        }
    }

    /// Parses a URL as in [`url`](Self::url), with any of the options `prefix`, `ca`, `tls` and
    /// `response_timeout`.
    ///
    /// # Errors
    /// `Config` naming the option that is unknown or malformed.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        url.expect_options(&["prefix", "ca", "tls", "response_timeout"])?;
        let config: Self =
            url.deserialize(url.to_fields(ADDRESS_OPTIONS, &[])).map_err(|error| {
                error.remedy("see `RedisConfig` for the options; durations are written like `5s`")
            })?;
        config.validate()?;
        Ok(config)
    }

    pub(crate) fn server(&self) -> ServerSettings {
        ServerSettings {
            url: self.url.clone(),
            ca: self.ca.clone(),
            response_timeout: self.response_timeout,
        }
    }

    /// Checks the values of the fields, without connecting.
    ///
    /// # Errors
    /// `Config` naming the field.
    pub(crate) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        shards::check(&self.shards)?;
        Server::new(&self.server())?;
        Ok(())
    }
}

/// Refuses a prefix that could make keys ambiguous.
///
/// # Errors
/// `Config`.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let well_formed = (1..=64).contains(&prefix.len())
        && prefix.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c));
    if !well_formed {
        return Err(invalid_setting(
            format!(
                "the prefix {prefix:?} is empty, too long or has other characters than are allowed"
            ),
            "use letters, digits and . _ - : only, at most 64",
        ));
    }
    Ok(())
}
