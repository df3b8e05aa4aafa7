//! Settings, from a file or a URL.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, ConnectUrl, Environment, Secret};
use dq_core::{Backend, Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, de};

use crate::backend::RabbitBackend;
use crate::connect::{ServerSettings, check, fields_of};
use crate::whole::Whole;

/// Settings of the RabbitMQ backend: `type = "rabbitmq"` and, beside it, these fields.
///
/// ```toml
/// [backend]
/// type = "rabbitmq"
/// url = "amqps://jobs:${file:/run/secrets/amqp}@rabbit1,rabbit2,rabbit3/shop"
/// prefix = "shop"
/// ```
///
/// ```
/// use dq_rabbit::RabbitConfig;
///
/// let mut config = RabbitConfig::new("amqp://localhost:5672");
/// config.prefix = "shop".to_owned();
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RabbitConfig {
    /// The server: `amqp://[user:password@]host[:port][/vhost]`, or `amqps://…` with TLS. Several
    /// nodes of a cluster, `amqp://h1:5672,h2:5672/vhost`, are tried in turn. `rabbitmq` and
    /// `rabbitmqs` mean the same as `amqp` and `amqps`. User and password are `guest`, the virtual
    /// host is `/` and the port 5672 (5671 with TLS) unless given.
    pub url: Secret,
    /// A PEM file with the certificate of the authority that vouches for the server; those of the
    /// system unless set.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// What the names of all exchanges and queues begin with: `dq` unless set. Letters, digits and
    /// `. _ - :`, at most 64; not `amq`, which RabbitMQ keeps for itself.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// Of what kind the queues are that hold jobs. Cannot be changed once they are declared: choose
    /// another `prefix` for that.
    #[serde(default)]
    pub queues: QueueKind,
    /// Who declares exchanges and queues.
    #[serde(default)]
    pub topology: TopologyMode,
    /// How many messages the broker may push ahead to one runner of a queue: 10000 unless set, between 1
    /// and 65535. Each brings up to 16 jobs that were scheduled together, and takes one of these places from
    /// up to ten seconds before they are due until they are claimed; if more come in that time, some jobs
    /// start late.
    #[serde(default = "default_prefetch", deserialize_with = "prefetch")]
    pub prefetch: u16,
    /// How long to wait for an answer: `5s` unless set, between `10ms` and `1day`. Six times as long where
    /// queues are declared.
    #[serde(default = "default_response_timeout", deserialize_with = "response_timeout")]
    pub response_timeout: Duration,
    /// How much of the log of all changes the broker keeps, in MiB: 1024 unless set, between 16 and
    /// 4294967295. Cannot be changed once it is declared. Each node with a replica of the log needs as much disk, and
    /// all jobs, the dead ones too, may take a fifth of it with their payloads: they are written
    /// again before the log forgets them. Beyond that, nothing more is accepted.
    #[serde(default = "default_log_size", deserialize_with = "log_size_mib")]
    pub log_size_mib: u32,
    /// The URL of the management API, `http[s]://[user:password@]host:15672`. None unless set; only
    /// `check` uses it.
    #[serde(default)]
    pub management: Option<Secret>,
}

/// Of what kind the queues are that hold jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueKind {
    /// Replicated, and synced to disk before a message counts as stored: a broker that crashes loses
    /// none, a cluster survives the loss of a minority of its nodes.
    #[default]
    Quorum,
    /// On one node, and away with it, at less cost for each job. A message that waits less than a
    /// day moves from queue to queue once or twice; of those that are about to move when the broker crashes, about half a
    /// second of traffic is lost. Their jobs are not: they are in the log, and run from there, up to a
    /// quarter of a second late. A broker that is stopped or restarted in good order loses none.
    Classic,
}

/// Who declares exchanges and queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopologyMode {
    /// This backend declares what it needs when it connects.
    #[default]
    Declare,
    /// Somebody else has; this backend only looks whether everything is there.
    Passive,
    /// As `Declare`, but delays are left to the plugin `rabbitmq_delayed_message_exchange`, which
    /// keeps jobs that wait on one node, unreplicated.
    Plugin,
}

/// RabbitMQ takes 0 for no limit, and counts in 16 bits.
const PREFETCH: Whole = Whole { field: "prefetch", least: 1, most: u16::MAX as u32, usual: 10_000 };

/// Less than 16 MiB hold too few changes to be worth a log.
const LOG_SIZE_MIB: Whole = Whole { field: "log_size_mib", least: 16, most: u32::MAX, usual: 1024 };

fn prefetch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    PREFETCH.read(deserializer)
}

fn log_size_mib<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    LOG_SIZE_MIB.read(deserializer)
}

/// A URL does not say which of its options is wrong, so the sentence must.
fn response_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    dq_core::config::duration::deserialize(deserializer)
        .map_err(|error| de::Error::custom(format!("the field `response_timeout`: {error}")))
}

fn default_prefix() -> String {
    "dq".to_owned()
}

const fn default_prefetch() -> u16 {
    PREFETCH.usual as u16
}

const fn default_response_timeout() -> Duration {
    Duration::from_secs(5)
}

const fn default_log_size() -> u32 {
    LOG_SIZE_MIB.usual
}

impl RabbitConfig {
    /// The default settings with this server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url.into()),
            ca: None,
            prefix: default_prefix(),
            queues: QueueKind::default(),
            topology: TopologyMode::default(),
            prefetch: default_prefetch(),
            response_timeout: default_response_timeout(),
            log_size_mib: default_log_size(),
            management: None,
        }
    }

    /// The settings of a URL as in [`url`](Self::url), with any of the other fields as options.
    ///
    /// # Errors
    /// `Config` naming the option that is unknown or malformed.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        const OPTIONS: [&str; 8] = [
            "ca",
            "prefix",
            "queues",
            "topology",
            "prefetch",
            "response_timeout",
            "log_size_mib",
            "management",
        ];
        url.expect_options(&OPTIONS)?;
        let fields = fields_of(url, &["prefetch", "log_size_mib"]);
        let config: Self = serde_json::from_value(fields).map_err(|error| {
            refused(
                format!("the RabbitMQ URL has a wrong option: {error}"),
                "see `RabbitConfig` for the options and what they take",
            )
        })?;
        config.validate()?;
        Ok(config)
    }

    pub(crate) fn server(&self) -> ServerSettings {
        ServerSettings {
            url: self.url.clone(),
            ca: self.ca.clone(),
            response_timeout: self.response_timeout,
            prefix: self.prefix.clone(),
        }
    }

    /// The size of the log in bytes.
    pub(crate) fn log_bytes(&self) -> i64 {
        i64::from(self.log_size_mib) << 20
    }

    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        PREFETCH.check(self.prefetch.into())?;
        LOG_SIZE_MIB.check(self.log_size_mib)?;
        if let Some(management) = &self.management {
            check_management(management)?;
        }
        check(&self.server())
    }
}

/// Refuses a prefix that the broker would refuse, or that leaves no room for the rest of a name.
fn check_prefix(prefix: &str) -> Result<()> {
    let well_formed = (1..=64).contains(&prefix.len())
        && prefix.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c));
    if !well_formed {
        return Err(refused(
            format!("the field `prefix` is {prefix:?}, which cannot be used"),
            "use letters, digits and . _ - : only, at most 64",
        ));
    }
    if prefix == "amq" || prefix.starts_with("amq.") {
        return Err(refused(
            format!("the field `prefix` is {prefix:?}, which RabbitMQ keeps for itself"),
            "choose one that is not amq and does not begin with amq.",
        ));
    }
    Ok(())
}

fn check_management(management: &Secret) -> Result<()> {
    let url = management.expose();
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.map(|rest| rest.rsplit('@').next().unwrap_or(rest));
    if host.is_none_or(|host| host.is_empty() || host.starts_with(['/', ':'])) {
        return Err(refused(
            "the field `management` is not the URL of a management API".to_owned(),
            "write it like http://user:password@host:15672",
        ));
    }
    Ok(())
}

pub(crate) fn refused(what: String, remedy: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect")
}

#[typetag::deserialize(name = "rabbitmq")]
#[async_trait]
impl BackendConfig for RabbitConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RabbitBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "rabbitmq",
    schemes: ["amqp", "amqps", "rabbitmq", "rabbitmqs"],
    from_url: |url| Ok(Box::new(RabbitConfig::from_url(url)?)),
}

#[cfg(test)]
mod tests {
    use dq_core::config::Config;

    use super::*;

    fn read(url: &str) -> Result<RabbitConfig> {
        ConnectUrl::parse(url).and_then(|url| RabbitConfig::from_url(&url))
    }

    #[test]
    fn every_field_is_an_option() {
        let config = read(
            "amqp://u:p@h1:1,h2/jobs?prefix=shop&queues=classic&topology=passive&prefetch=7\
             &response_timeout=2s&log_size_mib=32&management=http://h:15672",
        )
        .unwrap();
        assert_eq!(config.url.expose(), "amqp://u:p@h1:1,h2/jobs");
        assert_eq!((config.prefix.as_str(), config.prefetch), ("shop", 7));
        assert_eq!((config.queues, config.topology), (QueueKind::Classic, TopologyMode::Passive));
        assert_eq!(config.response_timeout, Duration::from_secs(2));
        assert_eq!(config.log_bytes(), 32 << 20);
        assert_eq!(config.management.unwrap().expose(), "http://h:15672");
        assert!(read("rabbitmq://h").is_ok() && read("amqp://h").is_ok());
    }

    #[test]
    fn what_cannot_be_used_is_named_without_the_password() {
        for (url, word) in [
            ("amqp://u:hunter2@h?prefix=a%20b", "`prefix`"),
            ("amqp://u:hunter2@h?prefix=amq", "`prefix`"),
            ("amqp://u:hunter2@h?prefix=amq.x", "`prefix`"),
            ("amqp://u:hunter2@h?prefix=", "`prefix`"),
            ("amqp://u:hunter2@h?prefetch=0", "`prefetch`"),
            ("amqp://u:hunter2@h?prefetch=hunter2@h", "`prefetch` is no number"),
            ("amqp://u:hunter2@h?log_size_mib=15", "`log_size_mib`"),
            ("amqp://u:hunter2@h?response_timeout=1ms", "`response_timeout`"),
            ("amqp://u:hunter2@h?queues=mirrored", "quorum"),
            ("amqp://u:hunter2@h?topology=none", "declare"),
            ("amqp://u:hunter2@h?management=ftp://hunter2", "`management`"),
            ("amqp://u:hunter2@h?management=http://u:hunter2@", "`management`"),
            ("amqp://u:hunter2@h?ca=/none", "`ca`"),
            ("amqps://u:hunter2@h?ca=/does/not/exist", "`ca`"),
            ("amqp://u:hunter2@h:port", "host"),
            ("amqp://u:hunter2@h?heartbeat=3", "option"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{url}: {error:?}");
        }
    }

    #[test]
    fn a_number_that_is_wrong_is_told_with_its_name_and_its_range() {
        let prefetch = "between 1 and 65535";
        let size = "between 16 and 4294967295";
        for (option, value, words) in [
            ("prefetch", "0", ["`prefetch` is 0", prefetch]),
            ("prefetch", "65536", ["`prefetch` is 65536", prefetch]),
            ("prefetch", "1.5", ["1.5", prefetch]),
            ("log_size_mib", "15", ["`log_size_mib` is 15", size]),
            ("log_size_mib", "-1", ["-1", size]),
            ("log_size_mib", "4294967296", ["`log_size_mib` is 4294967296", size]),
            ("response_timeout", "5", ["`response_timeout`: ", "5"]),
            (
                "response_timeout",
                "\"1ms\"",
                ["`response_timeout` is 1ms", "between 10ms and 1 day"],
            ),
            (
                "response_timeout",
                "\"2d\"",
                ["`response_timeout` is 172800s", "between 10ms and 1 day"],
            ),
        ] {
            let url = format!("amqp://u:hunter2@h?{option}={}", value.trim_matches('"'));
            let file = format!(
                "[backend]\ntype = \"rabbitmq\"\nurl = \"amqp://u:hunter2@h\"\n{option} = {value}"
            );
            let of_file = Config::from_toml(&file).and_then(|config| {
                let config = config.backend;
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(config.connect(&Environment::default())).map(drop)
            });
            for error in [read(&url).unwrap_err(), of_file.unwrap_err()] {
                let text = error.to_string();
                assert!(words.iter().all(|word| text.contains(word)), "{option} {value}: {text}");
                assert!(!text.contains("***") && !text.contains("hunter2"), "{text}");
            }
        }
    }
}
