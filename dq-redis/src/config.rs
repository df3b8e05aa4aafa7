//! Settings, from a file or a URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, ConnectUrl, Environment, Secret};
use dq_core::{Backend, Error, ErrorKind, QueueName, Result};
use serde::Deserialize;

use crate::backend::RedisBackend;
use crate::connect::{Server, ServerSettings, fields_of};
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
    /// A PEM file with the certificate of the authority that vouches for the server; those of the
    /// system unless set.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// What the names of all keys begin with: `dq` unless set. Letters, digits and `. _ - :`, at
    /// most 64. All keys of one prefix live in one slot of a cluster, but for [`shards`](Self::shards).
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// How long to wait for an answer: `5s` unless set, and at least `10ms`.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// How many shards hot queues are spread over, by name; `*` stands for all that are not named.
    /// Between 1 and 256. Shards other than the first have keys that begin with `{prefix#number}`, so
    /// they live in other slots of a cluster; the server's user needs the same rights there. A queue
    /// without a number has as many as before: one, unless another process has set more. The number
    /// that was set last holds for all processes. A change moves no job and loses none, but calls by
    /// key then ask one shard more for each number that there has been. In a cluster each claim makes
    /// one call for each slot, and due order across slots holds for what is there when it begins.
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
    /// The default settings with this server.
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

    /// The settings of a URL as in [`url`](Self::url), with any of the options `prefix`, `ca`, `tls`
    /// and `response_timeout`.
    ///
    /// # Errors
    /// `Config` naming the option that is unknown or malformed.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        url.expect_options(&["prefix", "ca", "tls", "response_timeout"])?;
        let config: Self = serde_json::from_value(fields_of(url, &[])).map_err(|error| {
            refused(format!("the Redis URL has a wrong option: {error}"), "see `RedisConfig`")
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

    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        shards::check(&self.shards)?;
        Server::new(&self.server())?;
        Ok(())
    }
}

/// Refuses a prefix that would make keys ambiguous.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let well_formed = (1..=64).contains(&prefix.len())
        && prefix.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c));
    if !well_formed {
        return Err(refused(
            format!("the prefix {prefix:?} cannot be used"),
            "use letters, digits and . _ - : only, at most 64",
        ));
    }
    Ok(())
}

pub(crate) fn refused(what: String, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect")
}

#[typetag::deserialize(name = "redis")]
#[async_trait]
impl BackendConfig for RedisConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RedisBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "redis",
    schemes: ["redis", "rediss", "redis+unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"],
    from_url: |url| Ok(Box::new(RedisConfig::from_url(url)?)),
}
