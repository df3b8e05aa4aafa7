//! `dq.toml`, with the environment on top and secrets from elsewhere.

use std::collections::BTreeMap;
use std::path::Path;

use figment::providers::{Format, Toml};
use serde::Deserialize;

use super::fault::Fault;
use super::layers::Layers;
use super::variables::Variable;
use super::{BackendConfig, LimitSettings, QueueSettings, RunnerSettings, known_backends};
use crate::error::{Error, ErrorKind, Result};
use crate::model::QueueName;

/// Everything that can be configured.
///
/// ```toml
/// [backend]
/// type = "sqlite"           # the settings of a backend are beside its type
/// path = "jobs.db"
///
/// [defaults]                # of every queue
/// max_attempts = 8
///
/// [queues.ORDER_TIMEOUT]
/// concurrency = 16
/// backoff = { initial = "1s", factor = 2.0, max = "10m", jitter = 0.2 }
///
/// [runner]
/// concurrency = 256         # over all queues
/// grace = "30s"
///
/// [[drain]]                 # consumed until empty, not produced to
/// type = "sqlite"
/// path = "${OLD_DATA}/jobs.db"
/// ```
///
/// Environment variables win over the file: `DQ_BACKEND__PATH=…`,
/// `DQ_QUEUES__ORDER_TIMEOUT__CONCURRENCY=4`. In any text of the file, `${NAME}` stands for an
/// environment variable and `${file:PATH}` for the contents of a file without the line's end, so
/// that secrets need not stand in it; `$${` is a plain `${`.
///
/// Errors name the file or the variable and the key, and repeat no setting of a backend.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The store that is produced to and consumed.
    pub backend: Box<dyn BackendConfig>,
    /// Stores that are only consumed, until what is pending in them has run down.
    #[serde(default)]
    pub drain: Vec<Box<dyn BackendConfig>>,
    /// Settings of every queue, unless it has its own.
    #[serde(default)]
    pub defaults: QueueSettings,
    /// Settings by queue.
    #[serde(default)]
    pub queues: BTreeMap<QueueName, QueueSettings>,
    /// Settings of runners.
    #[serde(default)]
    pub runner: RunnerSettings,
    /// Bounds on what is accepted.
    #[serde(default)]
    pub limits: LimitSettings,
}

impl Config {
    /// Reads a file and the environment.
    ///
    /// # Errors
    /// `Config` naming the file, the key, and for unknown keys the known ones.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Figment would read a missing file as an empty one.
        if !path.is_file() {
            return Err(Error::new(
                ErrorKind::Config,
                format!("there is no file {}", path.display()),
            )
            .remedy(
                "give the path of dq.toml, or connect by URL: Dq::connect(\"sqlite://jobs.db\")",
            )
            .operation("read the configuration"));
        }
        Self::extract(&Layers::new(Toml::file_exact(path), Variable::all()?)?)
    }

    /// Reads text instead of a file, and no environment.
    ///
    /// # Errors
    /// As [`Self::from_path`].
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::extract(&Layers::new(Toml::string(text), [])?)
    }

    fn extract(layers: &Layers) -> Result<Self> {
        // Says so if two backends share a name, before one of them is taken for the other.
        known_backends()?;
        let config: Self = layers.read()?;
        let refuse = |table: &[&str], what: String| {
            // It begins with the field, which the path says already.
            let (field, what) = what.split_once(' ').unwrap_or(("", &what));
            let path = table.iter().copied().chain(field.split('.')).map(str::to_owned);
            layers.refuse(&path.collect::<Vec<_>>(), Fault::new(format!("it {what}")))
        };
        config.runner.range().map_err(|what| refuse(&["runner"], what))?;
        config.defaults.validate().map_err(|what| refuse(&["defaults"], what))?;
        for (queue, settings) in &config.queues {
            // The layers below are in the program: only there, all is known together.
            let known = settings.clone().over(config.defaults.clone());
            known.validate().map_err(|what| refuse(&["queues", queue.as_str()], what))?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::BackoffSettings;
    use crate::model::{Backoff, DurationExt, Limits};

    const MEMORY: &str = "[backend]\ntype = \"memory\"\n";

    fn refusal(text: &str) -> String {
        Config::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn reads_queues_durations_and_limits() {
        let config = Config::from_toml(&format!(
            "{MEMORY}[defaults]\nmax_attempts = 8\n[queues.A]\ntimeout = \"none\"\nlease = \"1m 30s\"\n\
             backoff = {{ initial = \"2s\" }}\n[limits]\npayload = 10\n[runner]\ngrace = \"5s\""
        ))
        .unwrap();
        let queue = QueueName::new("A").unwrap();
        let policy = config.queues[&queue].clone().over(config.defaults).policy(&queue).unwrap();
        assert_eq!(policy.max_attempts, 8);
        assert_eq!(policy.timeout, Duration::MAX);
        assert_eq!(policy.lease, Duration::from_secs(90));
        assert_eq!(policy.backoff, Backoff { initial: 2.seconds(), ..Backoff::default() });
        assert_eq!(config.runner.grace, Duration::from_secs(5));
        assert_eq!(Limits::from(config.limits).payload, 10);
    }

    #[test]
    fn a_file_changes_one_field_of_an_attributes_backoff_and_keeps_the_others() {
        let config = Config::from_toml(&format!(
            "{MEMORY}[defaults]\nbackoff = {{ jitter = 0.1 }}\n[queues.A]\n\
             backoff = {{ max = \"500ms\", jitter = 0.0 }}"
        ))
        .unwrap();
        let queue = QueueName::new("A").unwrap();
        let attribute = QueueSettings::new()
            .backoff(BackoffSettings::new().initial(100.millis()).factor(3.0).max(1.hours()));
        let file = config.queues[&queue].clone().over(config.defaults);
        let policy = file.clone().over(attribute).policy(&queue).unwrap();
        let expected =
            Backoff { initial: 100.millis(), factor: 3.0, max: 500.millis(), jitter: 0.0 };
        assert_eq!(policy.backoff, expected);
        // Without the attribute, `initial` is 1 s and longer than `max`.
        let error = file.policy(&queue).unwrap_err().to_string();
        assert!(error.contains("queue A: backoff.initial is 1s"), "{error}");
    }

    #[test]
    fn unknown_keys_are_refused_with_the_known_ones() {
        let error = refusal(&format!("{MEMORY}[queues.A]\nconcurency = 3"));
        assert!(error.contains("concurency") && error.contains("`concurrency`"), "{error}");
        let error = refusal("[backend]\ntype = \"memory\"\npath = \"x\"");
        assert!(error.contains("path"), "{error}");
        let error = refusal(&format!("{MEMORY}[runer]\ngrace = \"1s\""));
        assert!(error.contains("runer") && error.contains("`runner`"), "{error}");
    }

    #[test]
    fn an_unknown_backend_is_answered_with_the_known_ones_and_the_usual_reason() {
        let error = refusal("[backend]\ntype = \"mongodb\"");
        assert!(error.contains("mongodb") && error.contains("memory"), "{error}");
        assert!(error.contains("use its_crate as _;"), "{error}");
    }

    #[test]
    fn bad_values_are_refused_with_their_range() {
        for (text, needles) in [
            ("[queues.A]\ntimeout = 30", ["no unit", "30s"]),
            ("[queues.A]\ntimeout = \"soon\"", ["soon", "30s"]),
            ("[queues.A]\nconcurrency = 0", ["queues.A.concurrency: ", "pause"]),
            ("[defaults]\nmax_attempts = 0", ["defaults.max_attempts: ", "no retry"]),
            ("[queues.A]\nlease = \"10ms\"", ["lease", "1s"]),
            ("[queues.A]\nbackoff = { jitter = 3.0 }", ["queues.A.backoff.jitter: ", "1.0"]),
            ("[runner]\nsweep = \"1h\"", ["runner.sweep: ", "100ms"]),
            ("[queues.\"\"]\nlease = \"1s\"", ["queue name", "empty"]),
        ] {
            let error = refusal(&format!("{MEMORY}{text}"));
            assert!(needles.iter().all(|needle| error.contains(needle)), "{text}: {error}");
        }
    }

    #[test]
    fn secrets_come_from_files_and_a_missing_one_is_named() {
        assert!(refusal("[backend]\ntype = \"${DQ_TEST_NOT_SET}\"").contains("DQ_TEST_NOT_SET"));
        assert!(
            refusal("[backend]\ntype = \"${file:/does/not/exist}\"").contains("/does/not/exist")
        );
        let path = std::env::temp_dir().join(format!("dq-secret-{}", std::process::id()));
        std::fs::write(&path, "memory\n").unwrap();
        let text = format!("[backend]\ntype = \"${{file:{}}}\"", path.display());
        let config = Config::from_toml(&text);
        std::fs::remove_file(&path).unwrap();
        assert!(config.is_ok());
    }
}
