//! Settings of a private Redis server.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::install::REDIS;
use crate::port;
use crate::process::{PATIENCE, Process};
use crate::program::Program;
use crate::redis::Redis;
use crate::tls;
use crate::watchdog::Watchdog;

/// The Unix socket in a server's directory.
pub(super) const SOCKET: &str = "redis.sock";

/// What TLS needs, with paths relative to the server's directory.
const TLS: &str = "tls-cert-file server.crt\ntls-key-file server.key\n\
    tls-ca-cert-file ca.crt\ntls-auth-clients no\n";

/// How often a lost race for a port is run again.
const ATTEMPTS: usize = 10;

/// What a server shall be like; made by [`Redis::options`].
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    directives: Vec<(String, String)>,
    password: Option<String>,
    cluster: bool,
    unix_socket: bool,
    tls: bool,
    sentinel: bool,
}

impl RedisOptions {
    /// Every write is on disk before it is answered: `appendonly yes`, `appendfsync always`.
    pub fn aof(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Any directive of `redis.conf`; the value is written there as it is. The last one of a name
    /// counts.
    pub fn set(mut self, directive: &str, value: &str) -> Self {
        self.directives.retain(|(name, _)| name != directive);
        self.directives.push((directive.to_owned(), value.to_owned()));
        self
    }

    /// Clients must give this password. Only letters and digits, since it stands in the URL.
    pub fn password(mut self, password: &str) -> Self {
        let plain = password.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(plain && !password.is_empty(), "the password must be of letters and digits");
        self.password = Some(password.to_owned());
        self.set("requirepass", password).set("masterauth", password)
    }

    /// A node for a cluster, which has no slots and knows no other node yet.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self.set("cluster-enabled", "yes").set("cluster-node-timeout", "30000")
    }

    /// A replica of `primary`. It is connected to it when [`start`](Self::start) returns.
    pub fn replica_of(self, primary: &Redis) -> Self {
        let replica = self.set("replicaof", &format!("127.0.0.1 {}", primary.port()));
        match &primary.password {
            Some(password) => replica.set("masterauth", password),
            None => replica,
        }
    }

    /// The URL names the Unix socket instead of the port.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Only TLS at the port, by a certificate of an authority of its own: [`Redis::ca`]. For
    /// clients: private replicas and Sentinels speak plainly and would find no such primary.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A Sentinel instead of a server with data.
    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server. It is ready to answer when this returns; if it cannot be had, this
    /// panics with the reason and the server's log.
    pub fn start(self) -> Redis {
        let program = Program::expect(REDIS, "redis-server");
        let mut attempts = 0;
        loop {
            let redis = self.place(program.clone());
            redis.process.start();
            attempts += 1;
            match redis.until_ready() {
                Ok(()) => {
                    self.until_linked(&redis);
                    return redis;
                }
                Err(reason) if reason.contains("already in use") && attempts < ATTEMPTS => {}
                Err(reason) => panic!("redis-server does not start: {reason}"),
            }
        }
    }

    /// A directory, a port and the configuration for one server.
    fn place(&self, program: Program) -> Redis {
        let watchdog = Watchdog::start("dq-redis-");
        let port = if self.cluster { port::free_with_bus() } else { port::free() };
        let file = watchdog.dir().join("redis.conf");
        fs::write(&file, self.configuration(port))
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
        let url = self.url(port, watchdog.dir());
        if self.tls {
            tls::certify(watchdog.dir());
        }
        let mut arguments = vec![file.into()];
        if self.sentinel {
            arguments.push("--sentinel".into());
        }
        let process = Process::new(watchdog, program, arguments);
        Redis { process, port, password: self.password.clone(), url }
    }

    /// Paths are relative to the server's directory, in which it runs.
    fn configuration(&self, port: u16) -> String {
        let ports = match self.tls {
            true => format!("port 0\ntls-port {port}\n{}", TLS),
            false => format!("port {port}\n"),
        };
        let mut text = format!("bind 127.0.0.1\n{ports}unixsocket {SOCKET}\ndaemonize no\ndir .\n");
        if !self.sentinel {
            // A primary would wait for more replicas before it serves the first.
            text.push_str("repl-diskless-sync-delay 0\n");
            text.push_str(if self.has("save") { "" } else { "save \"\"\n" });
        }
        for (name, value) in &self.directives {
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }

    fn url(&self, port: u16, dir: &Path) -> String {
        let socket = dir.join(SOCKET);
        let password = self.password.as_deref();
        if self.unix_socket {
            let query = password.map(|password| format!("?pass={password}")).unwrap_or_default();
            return format!("redis+unix://{}{query}", socket.display());
        }
        let scheme = if self.tls { "rediss" } else { "redis" };
        let user = password.map(|password| format!(":{password}@")).unwrap_or_default();
        format!("{scheme}://{user}127.0.0.1:{port}/0")
    }

    fn has(&self, directive: &str) -> bool {
        self.directives.iter().any(|(name, _)| name == directive)
    }

    /// Waits until a replica has its primary's data.
    fn until_linked(&self, redis: &Redis) {
        let deadline = Instant::now() + PATIENCE;
        while self.has("replicaof")
            && !redis.command(&["INFO", "replication"]).text().contains("master_link_status:up")
        {
            assert!(Instant::now() < deadline, "no link to the primary; log:\n{}", redis.log());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
