//! Settings for a private PostgreSQL server.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::port;
use crate::postgres::installation::Installation;
use crate::postgres::server::{DATA, Postgres, USER};
use crate::process::{Process, retry, start_on_free_port};
use crate::tls;
use crate::unprivileged::{own, unprivileged};
use crate::watchdog::Watchdog;

/// Settings for a private PostgreSQL server; created by [`Postgres::options`].
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
    tls: bool,
    client_certificate: bool,
    /// The primary's socket directory and port.
    primary: Option<(PathBuf, u16)>,
}

impl PostgresOptions {
    /// Sets a parameter in `postgresql.conf` to a literal value. The last value counts.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Accepts only TLS on the port, with a certificate from a private CA: [`Postgres::ca`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Accepts only TLS on the port, from clients with a certificate from the private CA:
    /// [`Postgres::client_certificate`] and [`Postgres::client_key`].
    pub fn require_client_certificate(mut self) -> Self {
        self.client_certificate = true;
        self.tls()
    }

    /// Makes the server a streaming standby of `primary`, connected when [`start`](Self::start)
    /// returns. It starts with a copy of the primary's data, settings and certificates.
    pub fn standby_of(mut self, primary: &Postgres) -> Self {
        self.primary = Some((primary.socket_dir().to_owned(), primary.port()));
        self.tls = primary.tls;
        self
    }

    /// Starts the server and waits until it is ready. Panics with the log if it does not start.
    pub fn start(self) -> Postgres {
        let postgres = start_on_free_port("postgres", || {
            let postgres = self.create();
            postgres.process.start();
            postgres.wait_until_ready().map(|()| postgres)
        });
        self.wait_until_streaming(&postgres);
        postgres
    }

    fn create(&self) -> Postgres {
        let installation = Installation::find();
        let watchdog = Watchdog::start("dq-postgres-");
        let port = port::free();
        let data = watchdog.dir().join(DATA);
        let server = unprivileged(installation.program("postgres"), watchdog.dir());
        match &self.primary {
            None => run(into_data(&installation, "initdb", watchdog.dir())
                .args(["-U", USER, "-A", "trust", "-E", "UTF8"])
                .arg("--no-locale")),
            Some((socket_dir, port)) => copy(&installation, watchdog.dir(), socket_dir, *port),
        }
        self.configure(&data, port)
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", data.display()));
        let process = Process::new(watchdog, server, vec!["-D".into(), data.into()]);
        // The fast shutdown, which does not wait for clients to disconnect.
        let process = process.stopped_by("INT");
        let psql = installation.program("psql");
        Postgres { process, psql, port, tls: self.tls }
    }

    fn configure(&self, data: &Path, port: u16) -> std::io::Result<()> {
        let directory = data.parent().unwrap_or(data).display().to_string();
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", port.to_string()),
            ("unix_socket_directories", directory),
        ];
        if self.tls && self.primary.is_none() {
            settings.extend([
                ("ssl", "on".to_owned()),
                ("ssl_ca_file", tls::CA_CERTIFICATE.to_owned()),
            ]);
            tls::create_certificates(data);
            tls::create_client_certificate(data);
            own(data);
            let client = if self.client_certificate { " clientcert=verify-ca" } else { "" };
            let access = format!(
                "local all all trust\nlocal replication all trust\n\
                 hostssl all all 127.0.0.1/32 trust{client}\n"
            );
            fs::write(data.join("pg_hba.conf"), access)?;
        }
        settings.extend(self.settings.iter().map(|(name, value)| (&**name, value.clone())));
        let mut text = String::new();
        for (name, value) in settings {
            let _ = writeln!(text, "{name} = '{}'", value.replace('\'', "''"));
        }
        // The last value counts.
        let mut file = File::options().append(true).open(data.join("postgresql.conf"))?;
        file.write_all(text.as_bytes())
    }

    fn wait_until_streaming(&self, postgres: &Postgres) {
        retry(|| {
            let is_streaming = self.primary.is_none()
                || postgres.execute("SELECT status FROM pg_stat_wal_receiver") == "streaming";
            let reason = || format!("no stream from the primary; log:\n{}", postgres.log());
            is_streaming.then_some(()).ok_or_else(reason)
        });
    }
}

/// A command that creates a server's data.
fn into_data(installation: &Installation, program: &str, dir: &Path) -> Command {
    let mut command = unprivileged(installation.program(program), dir).command();
    command.current_dir(dir).arg("-D").arg(dir.join(DATA)).arg("--no-sync");
    command
}

/// Copies a primary's data for a standby.
fn copy(installation: &Installation, dir: &Path, socket_dir: &Path, port: u16) {
    let mut copy = into_data(installation, "pg_basebackup", dir);
    copy.args(["-R", "-c", "fast", "-U", USER, "-p", &port.to_string(), "-h"]);
    run(copy.arg(socket_dir));
}

fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{stderr}");
}

impl Postgres {
    /// Starts a server with the default settings.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// Replaces the data by a copy of another primary's, after [`kill`](Self::kill), and starts as
    /// its streaming standby, with the same port.
    pub fn rejoin(&self, primary: &Self) {
        let data = self.dir().join(DATA);
        let options = Self::options().standby_of(primary);
        let replaced = fs::remove_dir_all(&data).and_then(|()| {
            copy(&Installation::find(), self.dir(), primary.socket_dir(), primary.port());
            options.configure(&data, self.port)
        });
        replaced.unwrap_or_else(|error| panic!("{}: {error}", data.display()));
        self.restart();
        options.wait_until_streaming(self);
    }

    /// Returns settings for a server.
    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }
}

/// Returns a server for all tests in this process. Use your own
/// [database](Postgres::create_database).
pub fn shared_postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(Postgres::start)
}
