//! Settings, read from a configuration file or a URL.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::ConnectUrl;
use dq_core::{Error, ErrorKind, Result};
use serde::Deserialize;

/// Settings for the SQLite backend: `type = "sqlite"` and these fields.
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
    /// Path of the file; created if it does not exist.
    ///
    /// It may be your application's own database, which then stays in write-ahead logging mode.
    pub path: PathBuf,
    /// Which failures an acknowledged write survives: [`Durability::Full`] by default.
    #[serde(default)]
    pub durability: Durability,
    /// Table name prefix, `dq_` by default.
    ///
    /// A letter, then letters, digits and underscores; at most 32 characters.
    #[serde(default = "default_prefix")]
    pub table_prefix: String,
    /// How long to wait for the write lock: `5s` by default, at most `24h`.
    #[serde(default = "default_busy_timeout", with = "dq_core::config::duration")]
    pub busy_timeout: Duration,
    /// Page cache for writes, in MiB: 64 by default; from 1 to 1,048,576.
    #[serde(default = "default_cache")]
    pub cache_mib: u32,
    /// Maximum file size in MiB, from 1 to 16,777,215. No limit by default.
    ///
    /// Beyond it, calls fail with `Full`: mostly `schedule` and settlements that store a new
    /// payload, but any call that adds rows may. It limits this backend's connection, not your
    /// application's, and so not `schedule_in`.
    #[serde(default)]
    pub size_limit_mib: Option<u32>,
}

/// Which failures an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durability {
    /// Each write is synced to disk: it survives process and system crashes, and power loss.
    #[default]
    Full,
    /// A write survives a process crash. A system crash or power loss may lose the last writes, but
    /// never corrupts the file.
    Relaxed,
}

/// One day. SQLite counts milliseconds as an `i32`, up to 24 days.
const MAX_BUSY_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// SQLite counts the cache in KiB as an `i32`; this is half the range.
const MAX_CACHE_MIB: u32 = 1024 * 1024;

/// SQLite has at most 4,294,967,294 pages: 16 TiB at 4 KiB per page.
const MAX_SIZE_MIB: u32 = 16 * 1024 * 1024 - 1;

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
    /// Returns default settings for the file at `path`.
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

    /// Reads the settings from a URL.
    ///
    /// `sqlite://relative/path` or `sqlite:///absolute/path`, with the options `durability`,
    /// `table_prefix`, `busy_timeout`, `cache_mib` and `size_limit_mib`.
    ///
    /// # Errors
    /// `Config` for an unknown option or an invalid value; the message names it.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        const OPTIONS: [&str; 5] =
            ["durability", "table_prefix", "busy_timeout", "cache_mib", "size_limit_mib"];
        url.expect_options(&OPTIONS)?;
        let mut fields = serde_json::Map::new();
        fields.insert("path".to_owned(), url.address().into());
        for (name, value) in url.options() {
            // Two options are numbers; all others are strings, as in a configuration file.
            let value = match value.parse::<u32>() {
                Ok(number) if name.ends_with("_mib") => number.into(),
                _ => value.as_str().into(),
            };
            fields.insert(name.clone(), value);
        }
        let config: Self = url.deserialize(fields.into()).map_err(|error| {
            error.remedy("see `SqliteConfig` for the options; durations are written like `5s`")
        })?;
        config.validate()?;
        Ok(config)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let path = self.path.to_string_lossy();
        if path.is_empty() {
            return Err(invalid(
                "the path of the SQLite file is missing".to_owned(),
                "write sqlite://jobs.db or sqlite:///var/lib/app/jobs.db",
            ));
        }
        if path.contains(":memory:") || path.starts_with("file:") {
            return Err(invalid(
                format!("{path:?} is not the path of a file"),
                "use the memory backend for jobs in memory, or give the plain path of a file",
            ));
        }
        if self.busy_timeout > MAX_BUSY_TIMEOUT {
            return Err(invalid(
                format!("`busy_timeout` is {:?}, which is too long", self.busy_timeout),
                "use a duration from 0s to 24h, such as \"5s\"",
            ));
        }
        let sizes = [
            ("cache_mib", Some(self.cache_mib), MAX_CACHE_MIB),
            ("size_limit_mib", self.size_limit_mib, MAX_SIZE_MIB),
        ];
        for (name, value, max) in sizes {
            if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
                return Err(invalid(
                    format!("`{name}` is {value}, which is out of range"),
                    format!("use a number of mebibytes from 1 to {max}, or leave it out"),
                ));
            }
        }
        let prefix = &self.table_prefix;
        let well_formed = prefix.len() <= 32
            && prefix.starts_with(|first: char| first.is_ascii_alphabetic())
            && prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !prefix.to_ascii_lowercase().starts_with("sqlite_");
        if !well_formed {
            return Err(invalid(
                format!("the table prefix {prefix:?} is invalid"),
                "use a letter, then letters, digits and underscores, at most 32 characters; not `sqlite_`",
            ));
        }
        Ok(())
    }
}

fn invalid(message: String, remedy: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Config, message).remedy(remedy).operation("connect")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_url(url: &str) -> Result<SqliteConfig> {
        SqliteConfig::from_url(&ConnectUrl::parse(url)?)
    }

    #[test]
    fn urls_give_a_path_and_options() {
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
    fn invalid_settings_are_refused_by_name() {
        for (url, word) in [
            ("sqlite://", "path"),
            ("sqlite://:memory:", "memory"),
            ("sqlite://f?durabilty=full", "durabilty"),
            (
                "sqlite://f?durability=some",
                "`durability` of the sqlite URL is invalid: expected `full`",
            ),
            ("sqlite://f?cache_mib=lots", "`cache_mib`"),
            ("sqlite://f?cache_mib=0", "`cache_mib` is 0"),
            ("sqlite://f?cache_mib=1048577", "`cache_mib` is 1048577"),
            ("sqlite://f?busy_timeout=5", "`busy_timeout`"),
            ("sqlite://f?busy_timeout=30days", "`busy_timeout` is 2592000s"),
            ("sqlite://f?size_limit_mib=0", "`size_limit_mib` is 0"),
            ("sqlite://f?size_limit_mib=16777216", "`size_limit_mib` is 16777216"),
            ("sqlite://f?table_prefix=dq;--", "dq;--"),
            ("sqlite://f?table_prefix=SQLite_x", "SQLite_x"),
        ] {
            let error = from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
    }
}
