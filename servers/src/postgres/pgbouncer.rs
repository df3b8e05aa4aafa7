//! pgbouncer, a connection pooler for PostgreSQL.

use std::fs;
use std::net::TcpStream;

use crate::package::Package;
use crate::port;
use crate::postgres::server::{Postgres, USER};
use crate::process::{Process, process_control, start_on_free_port};
use crate::unprivileged::unprivileged;
use crate::watchdog::Watchdog;

pub(crate) const PACKAGE: Package = Package {
    directory: "pgbouncer",
    programs: &[("pgbouncer", "--version")],
    debian_packages: &["pgbouncer"],
};

/// pgbouncer on a free port of 127.0.0.1, in transaction mode, in front of all databases of a
/// server.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: u16,
}

impl PgBouncer {
    process_control!();

    /// Starts pgbouncer in front of `postgres`, which it reaches by the Unix socket.
    pub fn start(postgres: &Postgres) -> Self {
        start_on_free_port("pgbouncer", || {
            let pgbouncer = Self::create(postgres);
            pgbouncer.process.start();
            pgbouncer.wait_until_ready().map(|()| pgbouncer)
        })
    }

    /// Returns the URL of the database `postgres` through pgbouncer.
    pub fn url(&self) -> String {
        self.url_to("postgres")
    }

    /// Returns the server's URL of a database, such as from [`Postgres::create_database`], as a URL
    /// through pgbouncer.
    pub fn url_to(&self, database_url: &str) -> String {
        let name = database_url.rsplit('/').next().unwrap_or(database_url);
        format!("postgres://{USER}@{}/{name}", self.address())
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Restarts pgbouncer after [`kill`](Self::kill) or [`stop`](Self::stop), with its port.
    pub fn restart(&self) {
        self.process.start();
        if let Err(reason) = self.wait_until_ready() {
            panic!("pgbouncer does not restart: {reason}");
        }
    }

    fn create(postgres: &Postgres) -> Self {
        let watchdog = Watchdog::start("dq-pgbouncer-");
        let port = port::free();
        let users = watchdog.dir().join("users");
        // After a failed connection to the server, the default is to wait for 15 s.
        let configuration = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\nadmin_users = {USER}\n\
             pool_mode = transaction\nserver_login_retry = 1\n",
            postgres.socket_dir().display(),
            postgres.port(),
            users.display(),
        );
        let file = watchdog.dir().join("pgbouncer.ini");
        for (file, text) in [(&users, format!("\"{USER}\" \"\"\n")), (&file, configuration)] {
            fs::write(file, text)
                .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
        }
        let program = unprivileged(PACKAGE.program("pgbouncer"), watchdog.dir());
        // Other signals wait for clients to disconnect.
        let process = Process::new(watchdog, program, vec![file.into()]).stopped_by("QUIT");
        Self { process, port }
    }

    fn wait_until_ready(&self) -> Result<(), String> {
        self.process.wait_until_ready(|| {
            TcpStream::connect(self.address()).map(drop).map_err(|error| error.to_string())
        })
    }
}
