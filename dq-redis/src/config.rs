//! Settings of the native backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::{ConnectUrl, Secret, invalid_setting};
use dq_core::{QueueName, Result};
use serde::Deserialize;

use crate::connect::{ADDRESS_OPTIONS, Server, ServerSettings};
use crate::shards;

/// Settings of the native backend: `type = "redis"` and the fields below.
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
    /// Server address: `redis://[user:password@]host[:port][/database]`, `rediss://…` with TLS,
    /// `redis+unix:///path/to/socket`, `redis+cluster://host:port,host:port`, or
    /// `redis+sentinel://host:port,host:port/primary[/database]`. Its only option is `?tls=true`.
    pub url: Secret,
    /// PEM file with the certificate of the server's authority. Default: the system's authorities.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// First part of all key names: at most 64 letters, digits and `. _ - :`. Default: `dq`. All
    /// keys of a prefix are in one cluster slot, except with [`shards`](Self::shards).
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// How long to wait for a reply, at least `10ms`. Default: `5s`.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// Shard counts by queue, between 1 and 256; `*` stands for all queues without an entry.
    ///
    /// Shards spread a queue's jobs over several cluster slots. Their key names begin with
    /// `{prefix#shards.shard}`, and the server's user needs the same rights for them. A queue
    /// without an entry has the count that another process has set, or one shard.
    ///
    /// In a cluster, a queue with several shards can have no limits (`max_running`, …), because
    /// no script sees all of its running jobs.
    ///
    /// The count is fixed while the queue holds jobs (also dead ones), has pinned ids of ended
    /// jobs, is paused, or has limits in a cluster. Otherwise storing a job or pausing the queue
    /// changes it to your setting. If it is fixed and differs, storing a job is a `Config` error.
    /// Give all processes the same count. To change the count of a queue that is never empty, use a
    /// new [`prefix`](Self::prefix) and list the old one under `[[drain]]`.
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
    /// Creates the default settings for this server.
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

    /// Reads a URL as in [`url`](Self::url), with any of the options `prefix`, `ca`, `tls` and
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

    pub(crate) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        shards::check(&self.shards)?;
        Server::new(&self.server())?;
        Ok(())
    }
}

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
