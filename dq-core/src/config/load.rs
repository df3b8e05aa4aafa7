//! `dq.toml`, with the environment on top and secrets from elsewhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::{Dict, Value};
use serde::Deserialize;

use super::backend::BackendConfig;
use super::{QueueSettings, duration, known_backends};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Limits, QueueName};

/// Everything that can be configured.
///
/// ```toml
/// [backend]
/// type = "sqlite"
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
/// that secrets need not stand in it.
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

/// How a runner works.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunnerSettings {
    /// Jobs that one runner runs at once over all queues; at least 1. Default 256.
    pub concurrency: usize,
    /// How long running handlers may take to end when the runner is told to stop. Default 30 s.
    #[serde(with = "duration")]
    pub grace: Duration,
    /// Longest time between two looks at the store, which bounds the lateness if every hint is
    /// lost; 100 ms to 1 min. Default 1 s.
    #[serde(with = "duration")]
    pub sweep: Duration,
}

impl Default for RunnerSettings {
    fn default() -> Self {
        Self { concurrency: 256, grace: Duration::from_secs(30), sweep: Duration::from_secs(1) }
    }
}

impl RunnerSettings {
    /// Refuses numbers out of range.
    ///
    /// # Errors
    /// `Config` naming the field and its range.
    pub fn validate(&self) -> Result<()> {
        if self.concurrency == 0 {
            return Err(Error::new(ErrorKind::Config, "runner.concurrency is 0")
                .remedy("it must be at least 1; to stop a queue, pause it"));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.sweep) {
            let sweep = humantime::format_duration(self.sweep);
            return Err(Error::new(ErrorKind::Config, format!("runner.sweep is {sweep}"))
                .remedy("it must be 100ms to 1m"));
        }
        Ok(())
    }
}

/// Bounds on what is accepted, as far as they can be configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitSettings {
    /// See [`Limits::payload`], in bytes.
    pub payload: Option<usize>,
    /// See [`Limits::headers`], in bytes.
    pub headers: Option<usize>,
    /// See [`Limits::bulk`], in jobs.
    pub bulk: Option<usize>,
}

impl From<LimitSettings> for Limits {
    fn from(settings: LimitSettings) -> Self {
        let mut limits = Self::default();
        limits.payload = settings.payload.unwrap_or(limits.payload);
        limits.headers = settings.headers.unwrap_or(limits.headers);
        limits.bulk = settings.bulk.unwrap_or(limits.bulk);
        limits
    }
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
        Self::extract(Figment::new().merge(Toml::file_exact(path)).merge(environment()))
    }

    /// Reads text instead of a file, and no environment.
    ///
    /// # Errors
    /// As [`Self::from_path`].
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::extract(Figment::new().merge(Toml::string(text)))
    }

    fn extract(figment: Figment) -> Result<Self> {
        let known = known_backends()?;
        let mut dict: Dict = figment.extract().map_err(|error| refused(&error, ""))?;
        for value in dict.values_mut() {
            interpolate(value)?;
        }
        let resolved = Figment::new().merge(Serialized::defaults(dict));
        let config: Self = resolved.extract().map_err(|error| {
            let names: Vec<_> = known.keys().copied().collect();
            refused(&error, &names.join(", "))
        })?;
        config.runner.validate()?;
        for (queue, settings) in &config.queues {
            settings.clone().over(config.defaults.clone()).policy(queue)?;
        }
        Ok(config)
    }
}

/// `DQ_A__B__C` sets `a.b.c`; the name of a queue keeps its case.
fn environment() -> Env {
    let ours = Env::prefixed("DQ_").filter(|key| key.as_str().contains("__")).map(|key| {
        let parts: Vec<&str> = key.as_str().split("__").collect();
        let last = parts.len() - 1;
        let queue = parts[0].eq_ignore_ascii_case("queues") && last > 0;
        let place = |(i, part): (usize, &&str)| {
            if queue && i == 1 { (*part).to_owned() } else { part.to_ascii_lowercase() }
        };
        parts.iter().enumerate().map(place).collect::<Vec<_>>().join(".").into()
    });
    // Last, as each step of the chain above begins with figment's own default.
    ours.lowercase(false)
}

fn refused(error: &figment::Error, backends: &str) -> Error {
    // One error per line is what figment prints; one sentence is what we want.
    let what = error.to_string().replace('\n', "; ").replace("default.", "");
    let unknown_backend = matches!(
        &error.kind,
        figment::error::Kind::UnknownVariant(..) | figment::error::Kind::Message(_)
    ) && what.contains("unknown variant");
    let error = Error::new(ErrorKind::Config, what).operation("read the configuration");
    if unknown_backend {
        error.remedy(format!(
            "linked backends: {backends}; is the backend's crate linked? a crate that is never named in code registers nothing: `use its_crate as _;`"
        ))
    } else {
        error
    }
}

/// Puts variables and files in the place of `${…}`.
fn interpolate(value: &mut Value) -> Result<()> {
    match value {
        Value::String(_, text) if text.contains("${") => *text = interpolated(text)?,
        Value::Dict(_, dict) => dict.values_mut().try_for_each(interpolate)?,
        Value::Array(_, values) => values.iter_mut().try_for_each(interpolate)?,
        _ => {}
    }
    Ok(())
}

fn interpolated(text: &str) -> Result<String> {
    let bad = |what: String, remedy: &'static str| {
        Error::new(ErrorKind::Config, what).remedy(remedy).operation("read the configuration")
    };
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        result.push_str(before);
        let Some((name, tail)) = after.split_once('}') else {
            return Err(bad("a `${` has no `}`".to_owned(), "write ${NAME} or ${file:PATH}"));
        };
        if let Some(path) = name.strip_prefix("file:") {
            let secret = std::fs::read_to_string(path).map_err(|error| {
                bad(
                    format!("the file {path:?} cannot be read"),
                    "check the path and its permissions",
                )
                .source(error)
            })?;
            result.push_str(secret.trim_end_matches(['\n', '\r']));
        } else {
            let secret = std::env::var(name).map_err(|error| {
                bad(format!("the environment variable {name:?} cannot be read"), "set it")
                    .source(error)
            })?;
            result.push_str(&secret);
        }
        rest = tail;
    }
    result.push_str(rest);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(policy.backoff.initial, Duration::from_secs(2));
        assert_eq!(config.runner.grace, Duration::from_secs(5));
        assert_eq!(Limits::from(config.limits).payload, 10);
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
            ("[queues.A]\nconcurrency = 0", ["queue A", "pause"]),
            ("[queues.A]\nlease = \"10ms\"", ["lease", "1s"]),
            ("[queues.A]\nbackoff = { jitter = 3.0 }", ["jitter", "1.0"]),
            ("[runner]\nsweep = \"1h\"", ["sweep", "100ms"]),
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
