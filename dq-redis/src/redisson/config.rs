//! Settings, from a file or a URL.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, ConnectUrl, Environment, Secret};
use dq_core::{Backend, QueueName, Result};
use serde::Deserialize;

use super::backend::RedissonBackend;
use super::{Codec, Format};
use crate::config::{check_prefix, default_prefix, default_response_timeout};
use crate::connect::{ADDRESS_OPTIONS, Server, ServerSettings, as_redis};
use crate::error::invalid_setting;

/// Settings of the Redisson-compatible backend: `type = "redisson"` and, beside it, these fields.
///
/// ```
/// use dq_redis::{Codec, RedissonConfig};
///
/// let mut config = RedissonConfig::new("redis://localhost:6379/0");
/// config.codec = Codec::Json; // as TypedJsonJacksonCodec, or JSON in a StringCodec
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedissonConfig {
    /// The server, as in [`RedisConfig::url`](crate::RedisConfig::url); the schemes may also be
    /// `redisson`, `redisson+unix`, `redisson+cluster` and `redisson+sentinel`.
    pub url: Secret,
    /// As in [`RedisConfig::ca`](crate::RedisConfig::ca).
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// What the names of our own keys begin with, beside Redisson's: `dq` unless set.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// How long to wait for an answer: `5s` unless set.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// How members are packed: `current` (Redisson 3.21.1 and newer) unless set, or `legacy`. A queue
    /// that holds members of the other format is refused.
    #[serde(default)]
    pub format: Format,
    /// The codec of the Java clients: `raw` unless set.
    #[serde(default)]
    pub codec: Codec,
    /// The codec of single queues, where it is another one.
    #[serde(default)]
    pub codecs: BTreeMap<QueueName, Codec>,
    /// What a `NameMapper` of the Java clients puts before the names of queues: nothing unless set.
    #[serde(default)]
    pub name_prefix: String,
    /// Whether Java's order list is kept: `off` unless set.
    #[serde(default)]
    pub order_list: OrderList,
    /// What is noted about each job that is scheduled here, so that it is found by id: `all` unless
    /// set.
    #[serde(default)]
    pub index: Index,
    /// Whether due jobs go through Java's target list, where Java's clients that have waited longer
    /// come first: `false` unless set, and then jobs that are due are taken at once. Jobs that Java
    /// moves or that go this way lose id, key, headers and their own limit of attempts. Those of a
    /// paused queue are not moved.
    #[serde(default)]
    pub fair_with_java: bool,
    /// Queues of Java's that nobody here handles, but whose due jobs are to be moved to the target
    /// list all the same: none unless set.
    #[serde(default)]
    pub relay: BTreeSet<QueueName>,
    /// For how many queues a connection each waits for what Java puts into the target list
    /// directly: 16 unless set. Others look once a sweep.
    #[serde(default = "default_peeks")]
    pub peeks: usize,
}

/// What becomes of the list `redisson_delay_queue:{queue}`, which Java's `size`, `contains`, `remove`,
/// `readAll` and `poll` of the delayed queue work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderList {
    /// Jobs of this process are not in it: Java's `take()` gets them, those calls do not see them.
    /// What Java wrote is swept out some time after it was delivered.
    #[default]
    Off,
    /// Jobs of this process are in it, and are swept out some time after they were delivered: the
    /// calls see them, and may see some that are gone. The order rotates.
    Lazy,
    /// Jobs of this process are in it exactly as long as they wait. Each costs the server a walk
    /// through the list, as it does in Redisson itself: about 55 ns for each job that waits, twice.
    Strict,
}

/// Which jobs are found by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// All, at once. About 100 bytes a job.
    #[default]
    All,
    /// Those with a key, headers or a limit of attempts of their own; for others `cancel`, `get` and
    /// `reschedule` by id look through the queue, and a repeated id is noticed only with the same
    /// payload. The legacy format has no room for ids, so there all jobs are noted.
    Keyed,
}

const fn default_peeks() -> usize {
    16
}

impl RedissonConfig {
    /// The default settings with this server.
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
            order_list: OrderList::default(),
            index: Index::default(),
            fair_with_java: false,
            relay: BTreeSet::new(),
            peeks: default_peeks(),
        }
    }

    /// The settings of `redisson://…`, with any of the options `prefix`, `ca`, `tls`,
    /// `response_timeout`, `format`, `codec`, `name_prefix`, `order_list`, `index`, `fair_with_java`
    /// and `peeks`.
    ///
    /// # Errors
    /// `Config` naming the option that is unknown or malformed.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        const OPTIONS: [&str; 11] = [
            "prefix",
            "ca",
            "tls",
            "response_timeout",
            "format",
            "codec",
            "name_prefix",
            "order_list",
            "index",
            "fair_with_java",
            "peeks",
        ];
        url.expect_options(&OPTIONS)?;
        let fields = url.to_fields(ADDRESS_OPTIONS, &["peeks", "fair_with_java"]);
        let config: Self = serde_json::from_value(fields).map_err(|error| {
            invalid_setting(
                format!("the redisson URL has a wrong option: {error}"),
                "see `RedissonConfig`",
            )
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

    /// Checks what the types do not.
    pub(super) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        if self.name_prefix.len() > 128 || self.name_prefix.contains(char::is_control) {
            return Err(invalid_setting(
                "the name prefix is too long, or holds a control character".to_owned(),
                "give what the NameMapper of the Java clients puts before names, such as \"app:\"",
            ));
        }
        Server::new(&self.server())?;
        Ok(())
    }

    /// The line of Lua that tells the scripts.
    pub(super) fn settings(&self) -> String {
        let format = match self.format {
            Format::Current => "current",
            Format::Legacy => "legacy",
        };
        let order = match self.order_list {
            OrderList::Off => "off",
            OrderList::Lazy => "lazy",
            OrderList::Strict => "strict",
        };
        let (fair, index) = (self.fair_with_java, self.notes_all());
        format!("local FORMAT, ORDER, FAIR, INDEX = '{format}', '{order}', {fair}, {index}\n")
    }

    /// Whether every job scheduled here is noted.
    pub(super) fn notes_all(&self) -> bool {
        self.index == Index::All || self.format == Format::Legacy
    }
}

#[typetag::deserialize(name = "redisson")]
#[async_trait]
impl BackendConfig for RedissonConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RedissonBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "redisson",
    schemes: ["redisson", "redisson+unix", "redisson+cluster", "redisson+sentinel"],
    from_url: |url| Ok(Box::new(RedissonConfig::from_url(url)?)),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_url(url: &str) -> Result<RedissonConfig> {
        RedissonConfig::from_url(&ConnectUrl::parse(url)?)
    }

    #[test]
    fn urls_name_a_server_and_options() {
        let config = from_url(
            "redisson://h:1/2?format=legacy&codec=json&order_list=strict&fair_with_java=true&peeks=0&name_prefix=app:",
        )
        .unwrap();
        assert_eq!((config.format, config.order_list), (Format::Legacy, OrderList::Strict));
        assert_eq!((config.codec, config.fair_with_java, config.peeks), (Codec::Json, true, 0));
        assert_eq!(config.name_prefix, "app:");
        assert!(config.index == Index::All);
    }

    #[test]
    fn the_field_takes_the_schemes_of_redis_and_its_own() {
        for url in ["redis://h", "rediss+cluster://h", "redisson://h", "redisson+unix:///x"] {
            RedissonConfig::new(url).validate().unwrap();
        }
        for url in ["http://h", "h:7462", "redis-expiry://h", "redisson+pool://h"] {
            let error = RedissonConfig::new(url).validate().unwrap_err();
            assert_eq!(error.kind(), dq_core::ErrorKind::Config);
            assert!(error.to_string().contains("redis+sentinel://"), "{error}");
        }
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        for (url, word) in [
            ("redisson://h?format=old", "old"),
            ("redisson://h?order_list=maybe", "maybe"),
            ("redisson://h?peeks=many", "many"),
            ("redisson://h?fair_with_java=yes", "yes"),
            ("redisson://h?codec=xml", "xml"),
            ("redisson://h?prefix=a{b}", "a{b}"),
            ("redisson://h?colour=red", "colour"),
            ("redisson://h?response_timeout=9ms", "`response_timeout`"),
        ] {
            let error = from_url(url).unwrap_err();
            assert_eq!(error.kind(), dq_core::ErrorKind::Config, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
