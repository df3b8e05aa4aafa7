//! Loads the configuration from `dq.toml` and environment variables, or from either alone.

use std::collections::BTreeMap;
use std::path::Path;

use figment::providers::{Data, Format, Toml};
use serde::Deserialize;

use super::backend::{BackendConfig, backend_from_settings, known_backends};
use super::layers::Layers;
use super::problem::Problem;
use super::queue::QueueSettings;
use super::schedule::ScheduleSettings;
use super::setting_error::SettingError;
use super::settings::{LimitSettings, RunnerSettings, ServeSettings};
use super::typed::TypedSettings;
use super::variables::Variable;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{QueueName, ScheduleSpec};

/// The complete configuration, as read from `dq.toml` and the environment.
///
/// ```toml
/// [backend]
/// type = "sqlite"           # a backend's settings are the keys beside its type
/// path = "jobs.db"
///
/// [defaults]                # for every queue
/// max_attempts = 8
///
/// [queues.ORDER_TIMEOUT]
/// concurrency = 16
/// backoff = { initial = "1s", factor = 2.0, max = "10m", jitter = 0.2 }
///
/// [queues.BILLING.forward]  # a built-in handler of the crate dq-forward
/// type = "http"
/// url = "https://billing.example.com/due"
///
/// [runner]
/// concurrency = 256         # over all queues
/// grace = "30s"
///
/// [schedules.nightly-report] # jobs that recur
/// queue = "REPORT"
/// cron = "30 2 * * *"
/// tz = "Europe/Stockholm"
///
/// [[drain]]                 # consumed until empty, receives no new jobs
/// type = "sqlite"
/// path = "${OLD_DATA}/jobs.db"
/// ```
///
/// Environment variables override the file. Two underscores separate table and key:
/// `DQ_BACKEND__PATH=…`, `DQ_QUEUES__ORDER_TIMEOUT__CONCURRENCY=4`.
///
/// Keep secrets out of the file: in any string, write `${NAME}` for an environment variable or
/// `${file:PATH}` for a file's contents without its trailing newline. `$${` is a plain `${`.
///
/// Errors name the file or variable, and the key. Errors about a backend show no values except an
/// unknown `type` or an unreadable `${…}`.
#[derive(Debug)]
pub struct Config {
    /// The main store, which gets new jobs.
    pub backend: Box<dyn BackendConfig>,
    /// Stores being drained: they get no new jobs, and their jobs still run.
    pub drain: Vec<Box<dyn BackendConfig>>,
    /// Settings for queues without an entry in `queues`, and for fields an entry leaves unset.
    pub defaults: QueueSettings,
    /// Settings by queue.
    pub queues: BTreeMap<QueueName, QueueSettings>,
    /// Sources whose messages become jobs; see the crate dq-forward.
    pub ingress: Vec<TypedSettings>,
    /// Schedules by name; see [`ScheduleSettings`]. Runners declare them.
    pub schedules: BTreeMap<String, ScheduleSettings>,
    /// Runner settings.
    pub runner: RunnerSettings,
    /// Limits for payloads, headers and bulks.
    pub limits: LimitSettings,
    /// Settings for `dq serve`.
    pub serve: ServeSettings,
}

/// The file's tables, with stores whose types are not known yet.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tables {
    backend: Option<TypedSettings>,
    drain: Vec<TypedSettings>,
    defaults: QueueSettings,
    queues: BTreeMap<QueueName, QueueSettings>,
    ingress: Vec<TypedSettings>,
    schedules: BTreeMap<String, ScheduleSettings>,
    runner: RunnerSettings,
    limits: LimitSettings,
    serve: ServeSettings,
}

impl Config {
    /// Reads a file and the environment.
    ///
    /// # Errors
    /// `Config` with the file or variable and the key; for an unknown key also the known ones.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let refused = |message: String, remedy| {
            let error = Error::new(ErrorKind::Config, message).remedy(remedy);
            Err(error.operation("read the configuration"))
        };
        if let Err(error) = std::fs::File::open(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let message = format!("the file {} cannot be read: {error}", path.display());
            return refused(message, "let the user of this process read it");
        }
        // Figment reads a missing file as an empty one.
        if !path.is_file() {
            let remedy = "give the path of dq.toml, or a URL such as sqlite://jobs.db instead \
                          (`--url`; in code, `Dq::connect`)";
            return refused(format!("there is no file {}", path.display()), remedy);
        }
        Self::from_layers(&Layers::new(Some(Toml::file_exact(path)), Variable::all()?)?, None)
    }

    /// Reads only environment variables, such as `DQ_BACKEND__TYPE=sqlite`.
    ///
    /// # Errors
    /// `Config` with the variable and the key, or `DQ_BACKEND__TYPE` if unset.
    pub fn from_env() -> Result<Self> {
        Self::from_layers(&Layers::new(None::<Data<Toml>>, Variable::all()?)?, None)
    }

    /// Reads only environment variables. The store is this one, whatever `DQ_BACKEND__…` say.
    ///
    /// # Errors
    /// `Config` with the variable and the key.
    pub fn from_env_with(backend: Box<dyn BackendConfig>) -> Result<Self> {
        Self::from_layers(&Layers::new(None::<Data<Toml>>, Variable::all()?)?, Some(backend))
    }

    /// Reads TOML text, without a file or the environment.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::from_layers(&Layers::new(Some(Toml::string(text)), Vec::new())?, None)
    }

    fn from_tables(
        tables: Tables,
        layers: &Layers,
        given: Option<Box<dyn BackendConfig>>,
    ) -> Result<Self> {
        let store = |table: &[String], settings: &TypedSettings| {
            let is_main = table.len() == 1;
            backend_from_settings(settings, is_main)
                .map_err(|(key, problem)| layers.error_at(&[table, &key].concat(), problem))
        };
        let Tables { backend, drain, defaults, queues, ingress, schedules, runner, limits, serve } =
            tables;
        let missing = || {
            let problem = Problem::new("there is no [backend]").remedy(
                "add the table with a `type`, or set the variable DQ_BACKEND__TYPE: memory, \
                 sqlite, or the type of another enabled backend",
            );
            layers.error_at(&[], problem)
        };
        let backend = match given {
            Some(given) => given,
            None => store(&["backend".to_owned()], &backend.ok_or_else(missing)?)?,
        };
        let drain = drain
            .iter()
            .enumerate()
            .map(|(number, settings)| store(&["drain".to_owned(), number.to_string()], settings));
        let drain = drain.collect::<Result<_>>()?;
        Ok(Self { backend, drain, defaults, queues, ingress, schedules, runner, limits, serve })
    }

    fn from_layers(layers: &Layers, given: Option<Box<dyn BackendConfig>>) -> Result<Self> {
        // Rejects two backends with one name even if the configuration is valid.
        known_backends()?;
        let config = Self::from_tables(layers.deserialize()?, layers, given)?;
        let refused = |table: &[&str], error: SettingError| {
            let SettingError { field, problem } = error;
            let path = table.iter().copied().chain(field.split('.')).map(str::to_owned);
            layers.error_at(&path.collect::<Vec<_>>(), Problem::new(format!("it {problem}")))
        };
        config.runner.check_ranges().map_err(|error| refused(&["runner"], error))?;
        if config.defaults.forward.is_some() {
            let problem = "belongs to one queue: move it to `[queues.NAME.forward]`";
            return Err(refused(&["defaults"], SettingError::new("forward", problem)));
        }
        config.defaults.validate().map_err(|error| refused(&["defaults"], error))?;
        for (queue, settings) in &config.queues {
            // The runner validates again, because only it knows the handler's attribute, which both
            // tables override.
            let merged = settings.clone().over(config.defaults.clone());
            let table = ["queues", queue.as_str()];
            merged.validate().map_err(|error| refused(&table, error))?;
        }
        for (name, settings) in &config.schedules {
            let table = ["schedules", name.as_str()];
            ScheduleSpec::check_name(name).map_err(|error| {
                layers.error_at(&table.map(str::to_owned), Problem::new(error.to_string()))
            })?;
            let spec = settings.checked().map_err(|error| refused(&table, error))?;
            spec.queue.refuse_reserved().map_err(|error| {
                let path = ["schedules", name, "queue"].map(str::to_owned);
                layers.error_at(&path, Problem::new(error.to_string()))
            })?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{Backoff, DurationExt, Limits};

    const MEMORY: &str = "[backend]\ntype = \"memory\"\n";

    fn refusal(text: &str) -> String {
        Config::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn queues_durations_and_limits_are_read() {
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
    fn the_settings_of_a_server_are_read() {
        let config = Config::from_toml(&format!(
            "{MEMORY}[serve]\naddress = \"[::1]:80\"\n\
             [serve.tokens.ann]\nrole = \"viewer\"\ntoken = \"hunter2\""
        ))
        .unwrap();
        assert_eq!(config.serve.address.as_deref(), Some("[::1]:80"));
        let ann = &config.serve.tokens["ann"];
        assert_eq!((ann.role.as_str(), ann.token.expose()), ("viewer", "hunter2"));
        let error = refusal(&format!("{MEMORY}[serve.tokens.ann]\ntoken = \"hunter2\""));
        assert!(error.contains("serve.tokens.ann") && error.contains("role"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_place_and_the_valid_values() {
        let late = |then| format!("[queues.A]\nlate = {{ after = \"5m\", then = \"{then}\" }}");
        for (text, needles) in [
            ("[queues.A]\nconcurency = 3", ["queues.A.concurency: unknown", "`concurrency`"]),
            ("[runer]\ngrace = \"1s\"", ["runer", "`runner`"]),
            ("[queues.A]\ntimeout = 30", ["no unit", "30s"]),
            ("[queues.A]\ntimeout = \"soon\"", ["soon", "30s"]),
            ("[queues.A]\nconcurrency = 0", ["queues.A.concurrency: ", "at least 1"]),
            (
                "[queues.A]\npriority = \"urgent\"",
                ["queues.A.priority: ", "`high` or `normal` or `low`"],
            ),
            ("[queues.A]\nreserve = \"all\"", ["queues.A.reserve: ", "nor \"none\""]),
            ("[queues.A]\nmax_running = 0", ["queues.A.max_running: it is 0", "pause it"]),
            ("[queues.A]\nmax_running = -1", ["queues.A.max_running: ", "-1 is too small"]),
            ("[queues.A]\nrate = \"10\"", ["queues.A.rate: ", "10/1s burst 20"]),
            ("[queues.A]\nreserve = 5\nconcurrency = 4", ["queues.A.reserve: it is 5", "is 4"]),
            ("[defaults]\nmax_attempts = 0", ["defaults.max_attempts: ", "no retry"]),
            ("[queues.A]\nlease = \"10ms\"", ["lease", "1s"]),
            ("[queues.A]\nbackoff = \"1s\"", ["queues.A.backoff: found text", "{ initial = "]),
            ("[queues.A]\nbackoff.jitter = 3.0", ["queues.A.backoff.jitter: ", "1.0"]),
            ("[queues.A]\nbackoff.factor = nan", ["queues.A.backoff.factor: ", "1.0"]),
            ("[queues.A.backoff]\ninitial = \"2s\"\nmax = \"1s\"", ["is 2s, longer", "max, 1s"]),
            ("[queues.A]\nhistory = 5", ["queues.A.history: ", "{ max = 1000, age = \"24h\" }"]),
            ("[queues.A]\nhistory.max = -1", ["queues.A.history: ", "max = 1000"]),
            (&late("drop"), ["queues.A.late", "\"queue:NAME\""]),
            (&late("queue:dq.x"), ["queues.A.late.then: ", "reserved"]),
            ("[queues.A.late]\nafter = \"0s\"\nthen = \"run\"", ["late.after: ", "1s"]),
            ("[queues.A.late]\nafter = \"5m\"", ["queues.A.late: ", "`then` is missing"]),
            ("[queues.A.forward]\nurl = \"x\"", ["queues.A.forward: ", "`type` is missing"]),
            ("[queues.A.forward]\ntype = 1", ["queues.A.forward: ", "in quotes"]),
            ("[queues.A]\nforward = \"http://x\"", ["queues.A.forward: ", "a table"]),
            ("[defaults.forward]\ntype = \"x\"", ["defaults.forward: ", "queues.NAME.forward"]),
            ("[runner]\nsweep = \"1h\"", ["runner.sweep: ", "100ms"]),
            ("[queues.\"\"]\nlease = \"1s\"", ["queue name", "empty"]),
        ] {
            let error = refusal(&format!("{MEMORY}{text}"));
            assert!(needles.iter().all(|needle| error.contains(needle)), "{text}: {error}");
        }
        // Shorter than the default `initial`, but the attribute may set a shorter one.
        assert!(Config::from_toml(&format!("{MEMORY}[queues.A]\nbackoff.max = \"1ms\"")).is_ok());
        let error = refusal("[backend]\ntype = \"memory\"\npath = \"x\"");
        assert!(error.contains("backend.path: unknown key; known: "), "{error}");
    }

    #[test]
    fn a_limit_of_a_lower_layer_is_removed_by_none() {
        let config = Config::from_toml(&format!(
            "{MEMORY}[defaults]\nrate = \"none\"\n[queues.A]\nreserve = \"none\"\n\
             max_running = \"none\"\ngroup_max_running = \"none\"\n[queues.B]\nreserve = 0"
        ))
        .unwrap();
        let rate: crate::model::Rate = "10/1s".parse().unwrap();
        let attribute = QueueSettings::new().max_running(3).group_max_running(2).rate(rate);
        let policy = |name: &str| {
            let settings = config.queues[name].clone().over(config.defaults.clone());
            let attribute = attribute.clone().reserve(4);
            settings.over(attribute).policy(&name.try_into().unwrap()).unwrap()
        };
        let (a, b) = (policy("A"), policy("B"));
        assert_eq!((a.reserve, a.flow.is_limited()), (0, false));
        assert_eq!(
            (b.reserve, b.flow.to_string().as_str()),
            (0, "max_running 3, group_max_running 2")
        );
    }

    #[test]
    fn schedules_are_read() {
        let config = Config::from_toml(&format!(
            "{MEMORY}[schedules.nightly]\nqueue = \"REPORT\"\ncron = \"30 2 * * *\"\n\
             tz = \"Europe/Stockholm\"\npayload = {{ region = \"eu\", ids = [1, 2] }}\n\
             catch_up = \"all:3\"\ndeadline = \"1h\"\njitter = \"10s\"\n\
             [schedules.\"every 90 s\"]\nqueue = \"PING\"\nevery = \"1m 30s\"\n\
             overlap = \"queue_one\"\nschema_version = 2"
        ))
        .unwrap();
        let nightly = config.schedules["nightly"].checked().unwrap();
        assert_eq!(nightly.times.to_string(), "30 2 * * * Europe/Stockholm");
        assert_eq!(nightly.payload, serde_json::json!({"region": "eu", "ids": [1, 2]}));
        assert_eq!((nightly.deadline, nightly.jitter), (Some(1.hours()), Some(10.seconds())));
        assert_eq!(nightly.overlap, crate::model::Overlap::Allow, "the default of `all`");
        let ping = config.schedules["every 90 s"].checked().unwrap();
        assert_eq!(ping.times.to_string(), "every 1m 30s");
        assert_eq!(ping.payload, serde_json::Value::Null);
        assert_eq!(ping.overlap, crate::model::Overlap::QueueOne);
        assert_eq!((nightly.schema_version, ping.schema_version), (None, Some(2)));
    }

    #[test]
    fn bad_schedules_are_refused_by_their_names() {
        for (entry, needles) in [
            ("cron = \"0 0 31 2 *\"", ["schedules.S.cron: ", "no such date"]),
            ("cron = \"61 * * * *\"", ["schedules.S.cron: ", "61 * * * *"]),
            ("cron = \"@daily\"\ntz = \"Stockholm\"", ["schedules.S.tz: ", "Europe/Stockholm"]),
            ("every = \"0s\"", ["schedules.S.every: ", "a millisecond"]),
            ("every = 90", ["schedules.S.every: ", "no unit"]),
            ("every = \"1m\"\ncron = \"@daily\"", ["schedules.S.every: ", "keep one"]),
            ("every = \"1m\"\ntz = \"UTC\"", ["schedules.S.tz: ", "no time zone"]),
            ("jitter = \"1m\"", ["schedules.S.cron: ", "missing"]),
            ("every = \"1m\"\ndeadline = \"0s\"", ["schedules.S.deadline: ", "is 0"]),
            ("every = \"1m\"\nschema_version = 0", ["schedules.S.schema_version: ", "is 0"]),
            ("every = \"1m\"\ncatch_up = \"some\"", ["schedules.S.catch_up: ", "all:10"]),
            ("every = \"1m\"\noverlap = \"queue\"", ["schedules.S.overlap", "queue_one"]),
            ("every = \"1m\"\ntimezone = \"UTC\"", ["schedules.S.timezone", "`tz`"]),
            ("every = \"1m\"\nqueue = \"dq.x\"", ["schedules.S.queue: ", "reserved"]),
        ] {
            let queue = if entry.contains("queue = \"") { "" } else { "queue = \"Q\"\n" };
            let error = refusal(&format!("{MEMORY}[schedules.S]\n{queue}{entry}"));
            assert!(needles.iter().all(|needle| error.contains(needle)), "{entry}: {error}");
        }
        let error = refusal(&format!("{MEMORY}[schedules.S]\nevery = \"1m\""));
        assert!(error.contains("schedules.S.queue: it is missing"), "{error}");
        let error = refusal(&format!("{MEMORY}[schedules.\"\"]\nevery = \"1m\"\nqueue = \"Q\""));
        assert!(error.contains("the name of the schedule is empty"), "{error}");
        let error = refusal(&format!(
            "{MEMORY}[schedules.S]\nqueue = \"A\"\nevery = \"1m\"\n[schedules.S]\nqueue = \"B\""
        ));
        assert!(error.to_lowercase().contains("duplicate"), "two of one name: {error}");
    }
}
