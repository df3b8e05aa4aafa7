//! A running PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{Process, process_control, retry};
use crate::program::Program;
use crate::tls;

/// The superuser, who needs no password.
pub(super) const USER: &str = "dq";

/// Below the server's directory.
pub(super) const DATA: &str = "data";

const DATABASE: &str = "postgres";

/// A frozen server must fail the test, not hang it.
const TIMEOUT: &[&str] = &["timeout", "120"];

/// A private PostgreSQL server on a free port of 127.0.0.1. Dropping it ends it and deletes its
/// directory. Its databases have the encoding UTF-8 and the locale C.
#[derive(Debug)]
pub struct Postgres {
    pub(super) process: Process,
    pub(super) psql: Program,
    pub(super) port: u16,
    pub(super) tls: bool,
}

impl Postgres {
    process_control!();

    /// Returns the URL of the database `postgres`: `postgres://dq@127.0.0.1:PORT/postgres`. The
    /// user is a superuser.
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// Creates an empty database with a new name, and returns its URL.
    #[track_caller]
    pub fn create_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.execute(&format!("CREATE DATABASE {name}"));
        self.url_of(&name)
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the port, which [`restart`](Self::restart) keeps.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the Unix socket's directory. The socket needs no TLS.
    pub fn socket_dir(&self) -> &Path {
        self.dir()
    }

    /// Returns the CA certificate that clients must trust. Requires
    /// [`PostgresOptions::tls`](crate::PostgresOptions::tls), like the following methods.
    pub fn ca(&self) -> PathBuf {
        self.dir().join(DATA).join(tls::CA_CERTIFICATE)
    }

    /// Returns a certificate for the client, with the user's name.
    pub fn client_certificate(&self) -> PathBuf {
        self.dir().join(DATA).join(tls::CLIENT_CERTIFICATE)
    }

    /// Returns the client certificate's key.
    pub fn client_key(&self) -> PathBuf {
        self.dir().join(DATA).join(tls::CLIENT_KEY)
    }

    /// Restarts the server after [`kill`](Self::kill) or [`stop`](Self::stop), with its port and
    /// data, and waits until it is ready.
    pub fn restart(&self) {
        retry(|| {
            let old_log = self.log().len();
            self.process.start();
            let Err(reason) = self.wait_until_ready() else { return Ok(()) };
            // If the server crashed by itself, its children may still be running.
            let is_in_use = self.log()[old_log..].contains("shared memory block");
            assert!(is_in_use, "postgres does not restart: {reason}");
            Err(reason)
        });
    }

    /// Makes a standby the primary, and waits until it accepts writes.
    #[track_caller]
    pub fn promote(&self) {
        let promoted = self.execute("SELECT pg_promote()");
        assert_eq!(promoted, "t", "the standby was not promoted; log:\n{}", self.log());
    }

    /// Executes SQL in the database `postgres`, and returns a line for each row, with `|` between
    /// values. Panics with the server's error, or after 120 s.
    #[track_caller]
    pub fn execute(&self, sql: &str) -> String {
        self.try_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Like [`execute`](Self::execute), but returns the server's error.
    pub fn try_execute(&self, sql: &str) -> Result<String, String> {
        let socket = format!("host={}&port={}", self.socket_dir().display(), self.port);
        self.psql(&format!("postgres://{USER}@/{DATABASE}?{socket}"), sql)
    }

    /// Like [`try_execute`](Self::try_execute), through a URL: another database's, a pooler's, or
    /// with parameters such as `sslmode`.
    pub fn psql(&self, url: &str, sql: &str) -> Result<String, String> {
        let program = Program { wrapper: TIMEOUT, ..self.psql.clone() };
        let arguments = ["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql];
        let output = program.command().args(arguments).output();
        let output = output.map_err(|error| format!("psql cannot be started: {error}"))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("psql failed ({}):\n{stderr}", output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned())
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://{USER}@{}/{database}", self.address())
    }

    /// The error has the reason and the log.
    pub(super) fn wait_until_ready(&self) -> Result<(), String> {
        let file = self.dir().join(DATA).join("postmaster.pid");
        let id = self.process_id().map(|id| id.to_string());
        self.process.wait_until_ready(|| {
            // The first line is the process id, the last one its state.
            let text = fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            let is_own = lines.next() == id.as_deref();
            match lines.next_back() {
                Some("ready" | "standby") if is_own => Ok(()),
                state => Err(format!("its state was {state:?}")),
            }
        })
    }
}
