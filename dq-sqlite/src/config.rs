//! Settings, from a file or a URL.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, ConnectUrl, Environment};
use dq_core::{Backend, Error, ErrorKind, Result};
use serde::Deserialize;

use crate::backend::SqliteBackend;

/// Settings of the SQLite backend: `type = "sqlite"` and, beside it, these fields.
///
/// ```
/// use dq_sqlite::SqliteConfig;
///
/// let mut config = SqliteConfig::new("jobs.db");
/// config.table_prefix = "jobs_".to_owned();
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The file; it is made if it is absent. It may be one that the application uses itself: it is
    /// then switched to write-ahead logging, which SQLite remembers.
    pub path: PathBuf,
    /// What `Ok` means.
    #[serde(default)]
    pub durability: Durability,
    /// What the names of tables begin with: `dq_` unless set. A letter, then letters, digits and
    /// underscores, at most 32.
    #[serde(default = "default_prefix")]
    pub table_prefix: String,
    /// How long to wait for other connections to finish writing: `5s` unless set.
    #[serde(default = "default_busy_timeout", with = "dq_core::config::duration")]
    pub busy_timeout: Duration,
    /// Memory for pages of the file, in MiB: 64 unless set.
    #[serde(default = "default_cache")]
    pub cache_mib: u32,
    /// How large the file may grow, in MiB; then `schedule` answers `Full`. No limit unless set.
    #[serde(default)]
    pub size_limit_mib: Option<u32>,
}

/// What the `Ok` of a write means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It is on the disk: it survives the end of the process, of the system, and a power cut.
    #[default]
    Full,
    /// It survives the end of the process; a power cut may take the last moments with it. The
    /// file is never damaged.
    Relaxed,
}

fn default_prefix() -> String {
    "dq_".to_owned()
}

const fn default_busy_timeout() -> Duration {
    Duration::from_secs(5)
}

const fn default_cache() -> u32 {
    64
}

impl SqliteConfig {
    /// The default settings with this file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            durability: Durability::default(),
            table_prefix: default_prefix(),
            busy_timeout: default_busy_timeout(),
            cache_mib: default_cache(),
            size_limit_mib: None,
        }
    }

    /// The settings of `sqlite://path`, `sqlite:///absolute/path`, each with any of the options
    /// `durability`, `table_prefix`, `busy_timeout`, `cache_mib` and `size_limit_mib`.
    ///
    /// # Errors
    /// `Config` naming the option that is unknown or malformed.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        const OPTIONS: [&str; 5] =
            ["durability", "table_prefix", "busy_timeout", "cache_mib", "size_limit_mib"];
        url.expect_options(&OPTIONS)?;
        let mut fields = serde_json::Map::new();
        fields.insert("path".to_owned(), url.address().into());
        for (name, value) in url.options() {
            // The two numeric options; all others are text, as in a configuration file.
            let value = match value.parse::<u32>() {
                Ok(number) if name.ends_with("_mib") => number.into(),
                _ => value.as_str().into(),
            };
            fields.insert(name.clone(), value);
        }
        let config: Self = serde_json::from_value(fields.into()).map_err(|error| {
            refused(format!("the sqlite URL has a wrong option: {error}"), "see `SqliteConfig`")
        })?;
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<()> {
        let path = self.path.to_string_lossy();
        if path.is_empty() {
            return Err(refused(
                "no path is given for the SQLite file".to_owned(),
                "write it like sqlite://jobs.db, or sqlite:///var/lib/app/jobs.db",
            ));
        }
        if path.contains(":memory:") || path.starts_with("file:") {
            return Err(refused(
                format!("{path:?} is not the path of a file"),
                "for jobs in memory use the memory backend; for a file give its plain path",
            ));
        }
        let prefix = &self.table_prefix;
        let well_formed = prefix.len() <= 32
            && prefix.starts_with(|first: char| first.is_ascii_alphabetic())
            && prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !prefix.to_ascii_lowercase().starts_with("sqlite_");
        if !well_formed {
            return Err(refused(
                format!("the table prefix {prefix:?} cannot be used"),
                "use a letter, then letters, digits and underscores, at most 32; not `sqlite_`",
            ));
        }
        Ok(())
    }
}

fn refused(what: String, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect")
}

#[typetag::deserialize(name = "sqlite")]
#[async_trait]
impl BackendConfig for SqliteConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(SqliteBackend::open(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "sqlite",
    schemes: ["sqlite"],
    from_url: |url| Ok(Box::new(SqliteConfig::from_url(url)?)),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_url(url: &str) -> Result<SqliteConfig> {
        SqliteConfig::from_url(&ConnectUrl::parse(url)?)
    }

    #[test]
    fn urls_name_a_file_and_options() {
        assert_eq!(from_url("sqlite://jobs.db").unwrap(), SqliteConfig::new("jobs.db"));
        let config = from_url(
            "sqlite:///var/jobs.db?durability=relaxed&busy_timeout=1s&cache_mib=8&table_prefix=x1_",
        )
        .unwrap();
        assert_eq!(config.path, PathBuf::from("/var/jobs.db"));
        assert_eq!(config.durability, Durability::Relaxed);
        assert_eq!(config.busy_timeout, Duration::from_secs(1));
        assert_eq!((config.cache_mib, config.table_prefix.as_str()), (8, "x1_"));
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        for (url, word) in [
            ("sqlite://", "path"),
            ("sqlite://:memory:", "memory"),
            ("sqlite://f?durabilty=full", "durabilty"),
            ("sqlite://f?durability=some", "some"),
            ("sqlite://f?cache_mib=lots", "lots"),
            ("sqlite://f?busy_timeout=5", "duration"),
            ("sqlite://f?table_prefix=dq;--", "dq;--"),
            ("sqlite://f?table_prefix=SQLite_x", "SQLite_x"),
        ] {
            let error = from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn files_name_it_by_type_and_refuse_unknown_fields() {
        let read = serde_json::from_str::<Box<dyn BackendConfig>>;
        let config = read(r#"{"type": "sqlite", "path": "jobs.db", "busy_timeout": "2s"}"#);
        assert!(format!("{:?}", config.unwrap()).contains("2s"));
        let error = read(r#"{"type": "sqlite", "path": "jobs.db", "durable": true}"#).unwrap_err();
        assert!(error.to_string().contains("durable"), "{error}");
    }
}
