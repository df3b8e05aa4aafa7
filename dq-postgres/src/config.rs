//! Settings, read from a configuration file or a URL.

use std::path::PathBuf;
use std::time::Duration;

use dq_core::Result;
use dq_core::config::{ConnectUrl, Secret, check_response_timeout, invalid_setting};
use serde::Deserialize;

use crate::connect::{ADDRESS_OPTIONS, Server, ServerSettings, TlsFiles};

/// Settings for the PostgreSQL backend: `type = "postgres"` and these fields.
///
/// ```
/// use dq_postgres::PostgresConfig;
///
/// let mut config = PostgresConfig::new("postgres://localhost/shop");
/// config.schema = "jobs".to_owned();
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// Server address: `postgres://[user[:password]@]host[:port][,host…][/database]`, or
    /// `postgresql://…`.
    ///
    /// Options as in libpq: `sslmode` (`disable`, `prefer` or `require`), `target_session_attrs`,
    /// `host` (a directory for a Unix socket), `user`, `dbname`, `application_name`, `options` and
    /// `connect_timeout`. With several hosts, the first one that accepts the connection is used;
    /// the default `target_session_attrs=read-write` skips standbys.
    pub url: Secret,
    /// PEM file with the certificate of the server's authority. Default: the system's authorities.
    /// A server that uses TLS is always verified.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// PEM file with this client's certificate; requires [`key`](Self::key).
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// PEM file with the private key of [`certificate`](Self::certificate).
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// The schema for tables and functions: `dq` by default. A lower-case letter, then lower-case
    /// letters, digits and underscores; at most 32 characters. Each schema is a store of its own.
    #[serde(default = "default_schema")]
    pub schema: String,
    /// Maximum number of connections, from 1 to 1,000: 8 by default. Wake-up hints use one more.
    #[serde(default = "default_connections")]
    pub connections: u32,
    /// Whether to prepare statements, which costs the server a third less for a call with one job:
    /// false by default. Leave it out if a pooler in transaction mode, like PgBouncer, is in
    /// between.
    #[serde(default)]
    pub prepare: bool,
    /// How long a call waits for a connection, and then for the reply, at least `10ms`: `5s` by
    /// default.
    #[serde(default = "default_response_timeout", with = "dq_core::config::duration")]
    pub response_timeout: Duration,
}

fn default_schema() -> String {
    "dq".to_owned()
}

const fn default_connections() -> u32 {
    8
}

const fn default_response_timeout() -> Duration {
    Duration::from_secs(5)
}

const SETTINGS: [&str; 7] =
    ["ca", "certificate", "key", "schema", "connections", "prepare", "response_timeout"];

impl PostgresConfig {
    /// Creates the default settings for this server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url.into()),
            ca: None,
            certificate: None,
            key: None,
            schema: default_schema(),
            connections: default_connections(),
            prepare: false,
            response_timeout: default_response_timeout(),
        }
    }

    /// Reads a URL as in [`url`](Self::url), with any of the other fields as options.
    ///
    /// # Errors
    /// `Config` naming the option that is unknown or malformed.
    pub fn from_url(url: &ConnectUrl) -> Result<Self> {
        url.expect_options(&[ADDRESS_OPTIONS, &SETTINGS].concat())?;
        let fields = url.to_fields(ADDRESS_OPTIONS, &["connections", "prepare"]);
        let config: Self = url.deserialize(fields).map_err(|error| {
            error.remedy("see `PostgresConfig` for the options; durations are written like `5s`")
        })?;
        config.validate()?;
        Ok(config)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        ConnectUrl::from_field(&self.url, ADDRESS_OPTIONS, &SETTINGS)?;
        check_response_timeout(self.response_timeout)?;
        let schema = &self.schema;
        let well_formed = schema.len() <= 32
            && schema.starts_with(|first: char| first.is_ascii_lowercase())
            && schema.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && !schema.starts_with("pg_")
            && schema != "public";
        if !well_formed {
            return Err(invalid_setting(
                format!("the schema {schema:?} is invalid"),
                "use a lower-case letter, then lower-case letters, digits and underscores, at most \
                 32 characters; not `public` or `pg_…`",
            ));
        }
        if !(1..=1_000).contains(&self.connections) {
            return Err(invalid_setting(
                format!("`connections` is {}, which is out of range", self.connections),
                "use a number from 1 to 1000, or leave it out",
            ));
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(invalid_setting(
                "only one of `certificate` and `key` is set",
                "set both to PEM files, or neither",
            ));
        }
        self.server().map(drop)
    }

    pub(crate) fn server(&self) -> Result<Server> {
        Server::new(&ServerSettings {
            url: self.url.expose(),
            response_timeout: self.response_timeout,
            tls: TlsFiles {
                ca: self.ca.as_deref(),
                certificate: self.certificate.as_deref(),
                key: self.key.as_deref(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_url(url: &str) -> Result<PostgresConfig> {
        PostgresConfig::from_url(&ConnectUrl::parse(url)?)
    }

    #[test]
    fn urls_give_an_address_and_options() {
        let config = from_url(
            "postgresql://me:secret@a,b:5433/shop?sslmode=disable&schema=jobs&connections=3&response_timeout=1s",
        )
        .unwrap();
        assert_eq!(config.url.expose(), "postgresql://me:secret@a,b:5433/shop?sslmode=disable");
        assert_eq!((config.schema.as_str(), config.connections), ("jobs", 3));
        assert_eq!(config.response_timeout, Duration::from_secs(1));
        assert!(!format!("{config:?}").contains("secret"));
        from_url("postgres:///shop?host=/run/postgresql").unwrap();
    }

    #[test]
    fn invalid_settings_are_refused_by_name() {
        for (url, words) in [
            ("postgres://h/db?shema=x", "shema"),
            ("postgres://h/db?schema=Jobs", "\"Jobs\""),
            ("postgres://h/db?schema=public", "\"public\""),
            ("postgres://h/db?connections=0", "`connections` is 0"),
            ("postgres://h/db?prepare=maybe", "`prepare`"),
            ("postgres://h/db?response_timeout=1ms", "`response_timeout`"),
            ("postgres://h/db?certificate=c.pem", "`certificate` and `key`"),
            ("postgres://h:port/db", "port"),
            ("postgres://h/db?sslmode=maybe", "sslmode"),
        ] {
            let error = from_url(url).unwrap_err();
            assert_eq!(error.kind(), dq_core::ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(words), "{url}: {error}");
        }
    }
}
