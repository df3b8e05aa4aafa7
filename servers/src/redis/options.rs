//! Settings for a private Redis server.

use std::fmt::Write;
use std::fs;
use std::sync::OnceLock;

use crate::port;
use crate::process::{Process, retry, start_on_free_port};
use crate::redis::PACKAGE;
use crate::redis::server::{Redis, SOCKET};
use crate::tls;
use crate::watchdog::Watchdog;

/// Relative to the server's directory.
const TLS_DIRECTIVES: &str = "tls-cert-file server.crt\ntls-key-file server.key\n\
    tls-ca-cert-file ca.crt\ntls-auth-clients no\n";

/// Settings for a private Redis server; created by [`Redis::options`].
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    directives: Vec<(String, String)>,
    password: Option<String>,
    cluster: bool,
    tls: bool,
    sentinel: bool,
}

impl RedisOptions {
    /// Syncs every write to disk before the reply: `appendonly yes`, `appendfsync always`.
    pub fn aof(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    /// Sets a directive in `redis.conf` to a literal value. The last value counts.
    pub fn set(mut self, directive: &str, value: &str) -> Self {
        self.directives.retain(|(name, _)| name != directive);
        self.directives.push((directive.to_owned(), value.to_owned()));
        self
    }

    /// Requires a password of letters and digits, because the URL contains it.
    pub fn password(mut self, password: &str) -> Self {
        let plain = password.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(plain && !password.is_empty(), "the password must consist of letters and digits");
        self.password = Some(password.to_owned());
        self.set("requirepass", password).set("masterauth", password)
    }

    /// Makes the server a cluster node without slots or neighbours.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self.set("cluster-enabled", "yes").set("cluster-node-timeout", "30000")
    }

    /// Makes the server a replica of `primary`, connected when [`start`](Self::start) returns.
    pub fn replica_of(self, primary: &Redis) -> Self {
        let replica = self.set("replicaof", &format!("127.0.0.1 {}", primary.port()));
        match &primary.password {
            Some(password) => replica.set("masterauth", password),
            None => replica,
        }
    }

    /// Accepts only TLS on the port, with a certificate from a private CA: [`Redis::ca`].
    ///
    /// Private replicas and Sentinels use no TLS and cannot connect to such a primary.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server and waits until it is ready. Panics with the log if it does not start.
    pub fn start(self) -> Redis {
        let redis = start_on_free_port("redis-server", || {
            let redis = self.create();
            redis.process.start();
            redis.wait_until_ready().map(|()| redis)
        });
        self.wait_until_replicating(&redis);
        redis
    }

    fn create(&self) -> Redis {
        let watchdog = Watchdog::start("dq-redis-");
        let port = if self.cluster { port::free_with_bus() } else { port::free() };
        let file = watchdog.dir().join("redis.conf");
        fs::write(&file, self.configuration(port))
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
        let url = self.url(port);
        if self.tls {
            tls::create_certificates(watchdog.dir());
        }
        let mut arguments = vec![file.into()];
        if self.sentinel {
            arguments.push("--sentinel".into());
        }
        let process = Process::new(watchdog, PACKAGE.program("redis-server"), arguments);
        Redis { process, port, password: self.password.clone(), url }
    }

    /// Paths are relative to the server's directory.
    fn configuration(&self, port: u16) -> String {
        let port_directives = match self.tls {
            true => format!("port 0\ntls-port {port}\n{}", TLS_DIRECTIVES),
            false => format!("port {port}\n"),
        };
        let mut text =
            format!("bind 127.0.0.1\n{port_directives}unixsocket {SOCKET}\ndaemonize no\ndir .\n");
        if !self.sentinel {
            // By default a primary waits for more replicas before it serves the first.
            text.push_str("repl-diskless-sync-delay 0\n");
            text.push_str(if self.has("save") { "" } else { "save \"\"\n" });
        }
        for (name, value) in &self.directives {
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }

    fn url(&self, port: u16) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let user =
            self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("{scheme}://{user}127.0.0.1:{port}/0")
    }

    /// Whether the caller has set a directive.
    fn has(&self, directive: &str) -> bool {
        self.directives.iter().any(|(name, _)| name == directive)
    }

    fn wait_until_replicating(&self, redis: &Redis) {
        retry(|| {
            let is_linked = !self.has("replicaof")
                || redis.command(&["INFO", "replication"]).text().contains("master_link_status:up");
            let reason = || format!("no link to the primary; log:\n{}", redis.log());
            is_linked.then_some(()).ok_or_else(reason)
        });
    }
}

impl Redis {
    /// Starts a server that keeps nothing on disk.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// Returns settings for a server.
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }
}

/// Returns a server for all tests in this process. Use your own keys.
pub fn shared_redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}
