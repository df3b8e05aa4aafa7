//! The server's address, and how to connect to it.

use std::time::Duration;

use dq_core::Result;
use dq_core::config::invalid_setting;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls::{self, TlsFiles};

/// The options of the address; others are settings.
pub(crate) const ADDRESS_OPTIONS: &[&str] = &[
    "sslmode",
    "sslnegotiation",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "application_name",
    "options",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
];

/// The settings that a connection needs.
pub(crate) struct ServerSettings<'a> {
    pub(crate) url: &'a str,
    pub(crate) response_timeout: Duration,
    pub(crate) tls: TlsFiles<'a>,
}

/// No `Debug`, so that the password is not shown.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) tls: MakeRustlsConnect,
    /// For messages: hosts, ports and database.
    pub(crate) shown: String,
}

impl Server {
    pub(crate) fn new(settings: &ServerSettings<'_>) -> Result<Self> {
        let url = settings.url;
        let mut config: tokio_postgres::Config = url.parse().map_err(|error: tokio_postgres::Error| {
            // The error's source names the option or part, and never the password.
            let reason = std::error::Error::source(&error).map_or_else(
                || error.to_string(),
                |source| source.to_string(),
            );
            invalid_setting(
                format!("the PostgreSQL URL is malformed: {reason}"),
                "write postgres://user:password@host:5432/database, with `@`, `:`, `/` and `?` of the \
                 password as %40, %3A, %2F and %3F",
            )
        })?;
        if !url.contains("target_session_attrs=") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("dq");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(settings.response_timeout);
        }
        config.tcp_user_timeout(settings.response_timeout.max(Duration::from_secs(1)) * 2);
        let is_plain = config.get_ssl_mode() == SslMode::Disable;
        let tls = tls::connector(&settings.tls, is_plain)?;
        let shown = shown(&config);
        Ok(Self { config, tls, shown })
    }
}

fn shown(config: &tokio_postgres::Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5_432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    match config.get_dbname().or(config.get_user()) {
        Some(database) => format!("{}/{database}", hosts.join(",")),
        None => hosts.join(","),
    }
}
