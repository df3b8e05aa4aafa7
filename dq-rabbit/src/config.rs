//! Settings from a file or a URL.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{ConnectUrl, Secret, invalid_setting};
use dq_core::{Entropy, Result};
use reqwest::Url;
use serde::Deserialize;

use crate::connect::{Broker, BrokerSettings};

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
    /// The broker: `amqp://[user:password@]host[:port][/vhost]`, or `amqps://…` with TLS. The nodes
    /// of a cluster, `amqp://h1:5672,h2:5672/vhost`, are tried in turn. The schemes `rabbitmq` and
    /// `rabbitmqs` mean the same as `amqp` and `amqps`. Defaults: user and password `guest`,
    /// virtual host `/`, port 5672 (5671 with TLS).
    pub url: Secret,
    /// A PEM file with the certificate of the certificate authority to trust. Default: the
    /// certificates of the operating system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The prefix for all names, `dq` by default. Up to 64 letters, digits and `. _ - :`; not
    /// `amq`, which RabbitMQ reserves.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// The type for queues that carry messages with payloads; the log holds the jobs in any case.
    /// You can change it only together with `prefix`.
    #[serde(default)]
    pub queues: QueueKind,
    /// Who declares exchanges and queues.
    #[serde(default)]
    pub topology: TopologyMode,
    /// The queues in which messages wait. You can change it at any time; messages in the other
    /// setting's queues are still delivered.
    #[serde(default)]
    pub ladder: LadderKind,
    /// Maximum number of unacknowledged messages per queue, between 1 and 65535, 10000 by default.
    /// A message holds up to 16 jobs that were scheduled together. It arrives up to ten seconds
    /// before they are due and is acknowledged when they are claimed. If more messages are due
    /// within that time, some jobs start late.
    #[serde(default = "default_prefetch")]
    pub prefetch: u16,
    /// How long to wait for a reply of the broker, between `10ms` and `1d`, `5s` by default.
    /// Declarations may take six times as long.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
    /// The size that the log should have, in MiB, between 16 and 4294967295, 1024 by default. Each
    /// node with a replica of the log needs as much disk, and more for a while if processes write
    /// faster than one of them can write a snapshot of the jobs. `schedule` fails with `Full` when
    /// the jobs that have not ended, dead ones included, their payloads and the history would take
    /// more than a fifth of it. The process that opened the log last sets it for all.
    #[serde(default = "default_log_size")]
    pub log_size_mib: u32,
    /// The URL of the management API, `http[s]://[user:password@]host:15672`. Optional. `check`
    /// uses it, and with it, opening the log fails if a policy would delete live jobs from it.
    #[serde(default)]
    pub management: Option<Secret>,
}

/// The type of the queues that carry messages with payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QueueKind {
    /// Quorum queues: replicated, and synced to disk before a message is confirmed. A broker crash
    /// loses no message, and a cluster survives without a minority of its nodes.
    #[default]
    Quorum,
    /// Classic queues: cheaper, but on one node and lost with it. A broker crash loses the messages
    /// that move between queues, about half a second's. Their jobs run from the log, the first some
    /// 250 ms late. An orderly stop or restart loses no message.
    Classic,
}

/// The delay ladder: queues with a constant time to live, from which messages move on by
/// dead-lettering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LadderKind {
    /// 292 queues. A message moves once or twice if the delay is less than a day, and arrives up to
    /// ten seconds early.
    #[default]
    Full,
    /// No queues and no messages: runners read payloads from the log shortly before jobs are due.
    None,
}

/// Who declares exchanges and queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TopologyMode {
    /// The backend declares them when it opens the log.
    #[default]
    Declare,
    /// Somebody else declares them; the backend checks that they exist. The streams of the log,
    /// `PREFIX.v1.log.N`, come and go, so at least one process needs the right to configure them.
    /// `check` declares a queue for its test message.
    Passive,
    /// As `Declare`, but the plugin `rabbitmq_delayed_message_exchange` delays messages instead of
    /// the delay ladder. It keeps waiting messages on one node, unreplicated.
    Plugin,
}

const OPTIONS: [&str; 9] = [
    "ca",
    "ladder",
    "log_size_mib",
    "management",
    "prefetch",
    "prefix",
    "queues",
    "response_timeout",
    "topology",
];

/// A smaller log would be compacted nearly all the time.
const MIN_LOG_SIZE_MIB: u32 = 16;

fn default_prefix() -> String {
    "dq".to_owned()
}

const fn default_prefetch() -> u16 {
    10_000
}

const fn default_response_timeout() -> Duration {
    Duration::from_secs(5)
}

const fn default_log_size() -> u32 {
    1024
}

impl RabbitConfig {
    /// The default settings for a broker.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url.into()),
            ca: None,
            prefix: default_prefix(),
            queues: QueueKind::default(),
            topology: TopologyMode::default(),
            ladder: LadderKind::default(),
            prefetch: default_prefetch(),
            response_timeout: default_response_timeout(),
            log_size_mib: default_log_size(),
            management: None,
        }
    }

    /// Parses a URL in the form of [`url`](Self::url), with any of the other fields as options.
    ///
    /// # Errors
    /// `Config` if an option is unknown or has an invalid value.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        url.expect_options(&OPTIONS)?;
        // No option belongs to the address; these fields are numbers.
        let fields = url.to_fields(&[], &["prefetch", "log_size_mib"]);
        let config: Self = url.deserialize(fields).map_err(|error| {
            error.remedy("see `RabbitConfig` for the options; durations are written like `5s`")
        })?;
        config.validate()?;
        Ok(config)
    }

    /// # Errors
    /// `Config` if the field `url` is malformed or has options, and those of [`Broker::new`].
    pub(crate) fn broker(&self, entropy: Arc<Entropy>) -> Result<Broker> {
        let settings = BrokerSettings {
            url: ConnectUrl::from_field(&self.url, &[], &OPTIONS)?,
            ca: self.ca.clone(),
            response_timeout: self.response_timeout,
            prefix: self.prefix.clone(),
        };
        Broker::new(settings, entropy)
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        u64::from(self.log_size_mib) << 20
    }

    /// Checks the values, without connecting.
    ///
    /// # Errors
    /// `Config` with the first field that is invalid.
    pub(crate) fn validate(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        // RabbitMQ treats 0 as unlimited.
        if self.prefetch == 0 {
            return Err(invalid_setting(
                "the field `prefetch` is 0",
                "set it to a number from 1 to 65535, or leave it out",
            ));
        }
        if self.log_size_mib < MIN_LOG_SIZE_MIB {
            return Err(invalid_setting(
                format!("the field `log_size_mib` is {}", self.log_size_mib),
                format!(
                    "set it to a number from {MIN_LOG_SIZE_MIB} to 4294967295, or leave it out"
                ),
            ));
        }
        if self.topology == TopologyMode::Plugin && self.ladder != LadderKind::Full {
            return Err(invalid_setting(
                "the field `ladder` is set, but the plugin delays messages",
                "remove it, or set `topology` to \"declare\"",
            ));
        }
        if let Some(management) = &self.management {
            check_management(management)?;
        }
        self.broker(Arc::new(Entropy::seeded(0))).map(drop)
    }
}

fn check_prefix(prefix: &str) -> Result<()> {
    let well_formed = (1..=64).contains(&prefix.len())
        && prefix.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c));
    if !well_formed {
        return Err(invalid_setting(
            format!("the field `prefix` is {prefix:?}, which is not a valid prefix"),
            "use only letters, digits and . _ - :, at most 64",
        ));
    }
    if prefix == "amq" || prefix.starts_with("amq.") {
        return Err(invalid_setting(
            format!("the field `prefix` is {prefix:?}, which RabbitMQ reserves"),
            "choose one that is not amq and does not begin with amq.",
        ));
    }
    Ok(())
}

fn check_management(management: &Secret) -> Result<()> {
    let invalid = |what: &str, remedy: &'static str| {
        Err(invalid_setting(format!("the field `management` {what}"), remedy))
    };
    let url = Url::parse(management.expose()).ok();
    let Some(url) = url.filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
    else {
        return invalid(
            "is not the URL of a management API",
            "write it like http://user:password@host:15672",
        );
    };
    // A `/`, `?` or `#` in the password has ended the host.
    let after_host = [Some(url.path()), url.query(), url.fragment()];
    if after_host.into_iter().flatten().any(|part| part.contains('@')) {
        return invalid(
            "has an @ after its host",
            "write / ? # @ in the password as %2F %3F %23 %40",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dq_core::config::{Config, Environment};
    use dq_core::{Error, ErrorKind};
    use futures_util::FutureExt;

    use super::*;

    fn parse(url: &str) -> Result<RabbitConfig> {
        ConnectUrl::parse(url).and_then(|url| RabbitConfig::from_url(&url))
    }

    #[test]
    fn every_field_can_be_a_url_option() {
        let config = parse(
            "amqp://u:p@h1:1,h2/jobs?prefix=shop&queues=classic&topology=passive&prefetch=7\
             &response_timeout=2s&log_size_mib=32&ladder=none&management=http://h:15672",
        )
        .unwrap();
        assert_eq!(config.url.expose(), "amqp://u:p@h1:1,h2/jobs");
        assert_eq!((config.prefix.as_str(), config.prefetch), ("shop", 7));
        assert_eq!((config.queues, config.topology), (QueueKind::Classic, TopologyMode::Passive));
        assert_eq!(config.ladder, LadderKind::None);
        assert_eq!(config.response_timeout, Duration::from_secs(2));
        assert_eq!(config.log_bytes(), 32 << 20);
        assert_eq!(config.management.unwrap().expose(), "http://h:15672");
        assert!(parse("rabbitmq://h").is_ok() && parse("amqp://h").is_ok());
    }

    #[test]
    fn errors_of_a_url_name_the_field_and_hide_the_password() {
        for (options, word) in [
            ("prefix=a%20b", "`prefix`"),
            ("prefix=amq", "`prefix`"),
            ("prefix=amq.x", "`prefix`"),
            ("prefix=", "`prefix`"),
            ("prefetch=hunter2@h", "`prefetch`"),
            ("queues=mirrored", "`queues` of the amqp URL is invalid: expected `quorum`"),
            ("response_timeout=5hunter2", "`response_timeout`"),
            ("topology=none", "declare"),
            ("ladder=long", "full"),
            ("ladder=none&topology=plugin", "`ladder`"),
            ("management=ftp://hunter2", "`management`"),
            ("management=http://u:hunter2@", "`management`"),
            ("management=http://u:15/hunter2@h:15672", "%2F"),
            ("ca=/none", "`ca`"),
            ("heartbeat=3", "option"),
        ] {
            let url = format!("amqp://u:hunter2@h?{options}");
            assert_config_error(&parse(&url).unwrap_err(), &[word]);
        }
        for url in ["amqps://u:hunter2@h?ca=/does/not/exist", "amqp://u:hunter2@h:port"] {
            assert_config_error(&parse(url).unwrap_err(), &[]);
        }
    }

    fn assert_config_error(error: &Error, words: &[&str]) {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Config, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }

    #[test]
    fn the_url_field_has_no_options() {
        for (url, words) in [
            ("amqp://h?prefix=shop", ["`prefix`", "`prefix = …`"]),
            ("amqp://h?heartbeat=3", ["unknown", "`prefix = …`"]),
            ("amqp://u:x?hunter2=y@h", ["unknown", "%3F"]),
        ] {
            assert_config_error(&RabbitConfig::new(url).validate().unwrap_err(), &words);
        }
        for url in ["amqp://h", "amqp://u:p@h/v?", "amqps://a,b/v"] {
            assert!(RabbitConfig::new(url).validate().is_ok(), "{url}");
        }
    }

    #[test]
    fn errors_about_numbers_name_the_field_and_its_range() {
        let timeout = "between 10ms and 1 day";
        for (option, value, words) in [
            ("prefetch", "0", ["`prefetch` is 0", "from 1 to 65535"]),
            ("prefetch", "65536", ["prefetch", "65535"]),
            ("prefetch", "1.5", ["prefetch", ""]),
            ("log_size_mib", "15", ["`log_size_mib` is 15", "from 16 to 4294967295"]),
            ("log_size_mib", "-1", ["log_size_mib", ""]),
            ("log_size_mib", "4294967296", ["log_size_mib", ""]),
            ("response_timeout", "5", ["response_timeout", ""]),
            ("response_timeout", "\"1ms\"", ["`response_timeout` is 1ms", timeout]),
            ("response_timeout", "\"2d\"", ["`response_timeout` is 172800s", timeout]),
        ] {
            let url = format!("amqp://u:hunter2@h?{option}={}", value.trim_matches('"'));
            let backend = "[backend]\ntype = \"rabbitmq\"\nurl = \"amqp://u:hunter2@h\"";
            let from_file = Config::from_toml(&format!("{backend}\n{option} = {value}"));
            let environment = Environment::default();
            let connected = from_file.and_then(|config| {
                let connecting = config.backend.connect(&environment);
                connecting.now_or_never().expect("invalid settings fail at once").map(drop)
            });
            for error in [parse(&url).unwrap_err(), connected.unwrap_err()] {
                assert_config_error(&error, &words);
                assert!(!error.to_string().contains("***"), "the value is shown: {error}");
            }
        }
    }
}
